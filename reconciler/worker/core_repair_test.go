// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
)

// repairing is a core with one complete release, whose repairs hang for a while and
// then fail.
type repairing struct {
	core core
	now  time.Time
	// ends has the ends of the running repairs, most the largest number of them.
	ends    map[payload.ObjectID]time.Time
	most    int
	started map[payload.ObjectID]int
}

// hung is how long a repair hangs.
const hung = 10 * time.Second

func newRepairing(t *testing.T, names ...string) *repairing {
	t.Helper()
	s := newScript(Restore{Accepted: desired("1.0.0"), Applied: desired("1.0.0")})
	r := &repairing{core: s.core, now: s.now, ends: map[payload.ObjectID]time.Time{}, started: map[payload.ObjectID]int{}}
	r.do(updated{generation: 1, desired: desired("1.0.0"), state: payload.Reconciling})
	r.do(loaded{number: r.core.load.number, info: PayloadInfo{Payload: testPayload(t, "1.0.0", names...), verified: true}})
	r.do(syncStepped{r.core.sync.number, StepApplyManifests})
	return r
}

func (r *repairing) do(e event) {
	var actions []action
	r.core, actions = next(r.core, e, r.now)
	for _, a := range actions {
		if a, ok := a.(repair); ok {
			r.started[a.manifest.ID]++
			r.ends[a.manifest.ID] = r.now.Add(hung)
		}
	}
	r.most = max(r.most, len(r.ends))
}

// pass passes time, in which hanging repairs fail, until done.
func (r *repairing) pass(limit time.Duration, done func() bool) (took time.Duration) {
	const tick = 50 * time.Millisecond
	for ; took < limit && !done(); took += tick {
		r.now = r.now.Add(tick)
		r.do(ticked{})
		for id, at := range r.ends {
			if !at.After(r.now) {
				delete(r.ends, id)
				r.do(repaired{id: id, err: &UpdateError{Code: "WebhookFailed", Effect: EffectFail, Object: id, Retry: true}})
			}
		}
	}
	return took
}

func TestManyHangingRepairsStayBoundedAndDontKeepAnObjectFromItsFirstTry(t *testing.T) {
	const stuck = 200
	names := []string{"healthy"}
	for i := range stuck {
		names = append(names, fmt.Sprintf("stuck%d", i))
	}
	r := newRepairing(t, names...)
	for _, name := range names[1:] {
		r.do(drifted{object(name)})
	}
	tried := func(n, times int) func() bool {
		return func() bool {
			have := 0
			for _, started := range r.started {
				if started >= times {
					have++
				}
			}
			return have >= n
		}
	}
	if took := r.pass(time.Hour, tried(stuck, 1)); took > 5*hung {
		t.Errorf("the first tries took %s", took)
	}
	if took := r.pass(time.Hour, tried(stuck, 2)); took > time.Duration(stuck/maxRetrying+3)*hung {
		t.Errorf("the first retries took %s: some starve", took)
	}
	// Only retries run now.
	r.do(drifted{object("healthy")})
	if took := r.pass(time.Hour, func() bool { return r.started[object("healthy")] > 0 }); took > slowRepair {
		t.Errorf("another object waited %s for its first try", took)
	}
	if r.most > maxRunning {
		t.Errorf("%d repairs ran at once", r.most)
	}
}

func TestDriftIsRepairedWhileASyncOrALoadHangs(t *testing.T) {
	for name, state := range map[string]func(t *testing.T, r *repairing){
		"a sync runs": func(*testing.T, *repairing) {},
		"a sync waits for its next attempt": func(_ *testing.T, r *repairing) {
			r.do(syncEnded{number: r.core.sync.number, err: &UpdateError{Code: "WebhookFailed", Effect: EffectFail, Retry: true}})
		},
		"a release is loaded": func(_ *testing.T, r *repairing) {
			r.do(updated{generation: 2, desired: desired("1.1.0")})
		},
		"a release is rejected": func(_ *testing.T, r *repairing) {
			r.do(updated{generation: 2, desired: desired("1.1.0")})
			r.do(loaded{number: r.core.load.number, err: &UpdateError{Code: "Unsigned", Effect: EffectFail}})
		},
		"a release is applied": func(t *testing.T, r *repairing) {
			t.Helper()
			r.do(updated{generation: 2, desired: desired("1.1.0")})
			r.do(syncEnded{number: r.core.sync.number, complete: true})
			r.do(loaded{number: r.core.load.number, info: PayloadInfo{Payload: testPayload(t, "1.1.0", "a", "b"), verified: true}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepairing(t, "a")
			state(t, r)
			r.do(drifted{object("a")})
			if r.started[object("a")] != 1 {
				t.Errorf("%d repairs, want one", r.started[object("a")])
			}
		})
	}
}
