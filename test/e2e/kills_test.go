// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler"
)

const (
	kills = 50
	// killSeedVariable names the seed for repeating a run.
	killSeedVariable = "LOCKSTEP_KILL_SEED"
	// Kills come after at most this many log lines of the process or changes
	// of objects: about as many as an update has.
	mostKillLines, mostKillChanges = 20, 40
)

// killing is a run of updates and rollbacks with kills.
type killing struct {
	*stable
	st     *stream
	random *rand.Rand
	// left are the remaining kills; began is the start of the running
	// process's log.
	left  int
	began int64
	// deleted is how often each object must have been deleted.
	deleted map[string]int
}

// killSeed is random unless the variable sets it.
func killSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(killSeedVariable); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("%s=%d", killSeedVariable, seed)
	return seed
}

// TestFiftyKillsLoseNothing kills the reconciler at random points of updates
// and rollbacks. Afterwards the cluster must be as without kills: every object
// at the desired version, every dropped object deleted once, the others with
// their UIDs, and no step undone.
func TestFiftyKillsLoseNothing(t *testing.T) {
	t.Parallel()
	k := &killing{stable: &stable{w: newEnv(t, 0)}, left: kills, deleted: map[string]int{}}
	k.random = rand.New(rand.NewPCG(killSeed(t), 0))
	k.good = release(t, k.w, levelled(first, "probe-38", "probe-39"))
	k.declares(t, first, k.good)
	must(t, k.w.Client.Create(t.Context(), k.w.GitSource()))
	k.begin(t)
	waitApplied(t, k.w, platform, first)
	k.besides(t)
	before := managedUIDs(t, k.w)
	k.st = follow(t, k.w, platform)

	legs := 0
	for round := 0; k.left > 0; round++ {
		// Each version is reached twice: by an update and by a rollback.
		version := fmt.Sprintf("1.0.%d", 1+round/2)
		leaves := []string{probe(2 + 2*(round/2)%30), probe(3 + 2*(round/2)%30)}
		ref := release(t, k.w, levelled(version, leaves...))
		k.leg(t, first, version, ref, leaves)
		k.leg(t, version, first, k.good, []string{"probe-38", "probe-39"})
		legs += 2
	}
	t.Logf("%d kills in %d updates and rollbacks, %d changes of objects", kills, legs, k.st.count())

	after := managedUIDs(t, k.w)
	if len(after) != len(before) {
		t.Errorf("%d objects at the end, %d at the beginning", len(after), len(before))
	}
	for name, uid := range before {
		if after[name] != uid && k.deleted[name] == 0 {
			t.Errorf("%s was recreated, or is gone", name)
		}
	}
	k.keepsRunning(t)
}

// besides creates an object with every mark of Lockstep's objects that isn't
// in the inventory.
func (k *killing) besides(t *testing.T) {
	t.Helper()
	var managed corev1.ConfigMap
	must(t, k.w.Client.Get(t.Context(), client.ObjectKey{Namespace: platform, Name: probe(37)}, &managed))
	must(t, k.w.Client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: platform, Name: "foreign", Labels: managed.Labels, Annotations: managed.Annotations,
	}}))
}

// leg moves from one version to another with kills on the way, and checks the
// result.
func (k *killing) leg(t *testing.T, from, to, ref string, leaves []string) {
	t.Helper()
	k.st.expect(from, to)
	had := k.left
	k.declares(t, to, ref)
	for k.left > 0 && k.killedOnTheWay(t, to) {
		k.left--
		must(t, k.w.Reconciler.Kill())
		k.vacate(t)
		k.begin(t)
	}
	waitApplied(t, k.w, platform, to)
	for _, name := range leaves {
		k.deleted[name]++
	}
	// The watch may lag behind the server's answers.
	k.st.until(t, fmt.Sprintf("deletions %v", k.deleted), func() bool {
		gone, _ := k.st.deletions()
		for name, times := range k.deleted {
			if gone[name] < times {
				return false
			}
		}
		return true
	})
	k.st.reach(t, to, probes-2)
	sameDeletions(t, k.st, k.deleted)
	if n := k.st.at(to); n != probes-2 {
		t.Errorf("%d objects at %s, want %d", n, to, probes-2)
	}
	for _, wrong := range k.st.wrongs() {
		t.Error(wrong)
	}
	t.Logf("%s → %s with %d kills", from, to, had-k.left)
	if t.Failed() {
		t.FailNow()
	}
}

// begin starts the reconciler.
func (k *killing) begin(t *testing.T) {
	t.Helper()
	if info, err := os.Stat(k.w.Path("reconciler.log")); err == nil {
		k.began = info.Size()
	}
	must(t, k.w.StartReconciler())
}

// vacate takes the lease from a dead process, so that the next one needn't
// wait until it expires.
func (k *killing) vacate(t *testing.T) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: reconciler.LeaseName}}
	must(t, client.IgnoreNotFound(k.w.Client.Patch(t.Context(), lease, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"holderIdentity":""}}`)))))
}

// killedOnTheWay waits for a random moment of the process and reports true, or
// false if the version was complete before.
func (k *killing) killedOnTheWay(t *testing.T, to string) bool {
	t.Helper()
	lines, changes := mostKillLines, mostKillChanges
	if k.random.IntN(2) == 0 {
		lines = 1 + k.random.IntN(mostKillLines)
	} else {
		changes = 1 + k.random.IntN(mostKillChanges)
	}
	from := k.st.count()
	check, ask := time.NewTicker(2*time.Millisecond), time.NewTicker(200*time.Millisecond)
	defer check.Stop()
	defer ask.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case <-check.C:
			written, err := k.lines()
			must(t, err)
			if written >= lines || k.st.count()-from >= changes {
				return true
			}
		case <-ask.C:
			obj, err := getRelease(ctx, k.w, platform)
			must(t, err)
			if obj.Status.Applied != nil && obj.Status.Applied.Version == to && meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionReady) {
				return false
			}
		case <-k.w.Reconciler.Done():
			t.Fatalf("the reconciler exited:\n%s", k.w.Reconciler.Tail(10))
		case <-ctx.Done():
			t.Fatalf("%s isn't complete after a minute", to)
		}
	}
}

// lines returns how many lines the running process has logged since its
// controllers started.
func (k *killing) lines() (int, error) {
	raw, err := os.ReadFile(k.w.Path("reconciler.log"))
	if err != nil {
		return 0, err
	}
	raw = raw[min(int64(len(raw)), k.began):]
	return bytes.Count(raw, []byte("\n")) - bytes.Count(raw, []byte(`"msg":"Starting `)), nil
}

// expect sets the versions between which each object moves once from now on.
func (s *stream) expect(from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from, s.to = from, to
}

// judge records violations. The lock is held.
func (s *stream) judge(e watchEvent) {
	if s.to == "" || e.name == "foreign" || e.name == "kube-root-ca.crt" {
		return
	}
	wrong := func(format string, args ...any) {
		const most = 20
		if len(s.wrong) < most {
			s.wrong = append(s.wrong, fmt.Errorf("on the way from %s to %s: "+format, append([]any{s.from, s.to}, args...)...))
		}
	}
	switch {
	case e.deleted && e.version != s.from:
		wrong("%s was deleted at version %q", e.name, e.version)
	case e.deleted:
	case e.version != s.to:
		wrong("%s was changed to version %q", e.name, e.version)
	case e.before == "" || e.before == s.from || e.before == s.to:
	default:
		wrong("%s was changed from version %q", e.name, e.before)
	}
	if uid := s.uids[e.name]; !e.deleted && uid != "" && uid != e.uid {
		wrong("%s was recreated", e.name)
	}
}

// wrongs returns the violations.
func (s *stream) wrongs() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.wrong)
}

// count returns the number of changes.
func (s *stream) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// watchEvent is one event of the watch with the state before it.
type watchEvent struct {
	name, version, before string
	uid                   types.UID
	// deleted objects are gone, or wait for their dependents.
	deleted bool
}

// TestTheWatchFindsEveryWrongStep replays forbidden events.
func TestTheWatchFindsEveryWrongStep(t *testing.T) {
	for name, tc := range map[string]struct {
		event watchEvent
		wrong bool
	}{
		"goes on":                 {watchEvent{name: "a", version: "2", before: "1", uid: "x"}, false},
		"is there already":        {watchEvent{name: "a", version: "2", before: "2", uid: "x"}, false},
		"is new":                  {watchEvent{name: "b", version: "2", uid: "y"}, false},
		"leaves":                  {watchEvent{name: "a", version: "1", before: "1", uid: "x", deleted: true}, false},
		"is another's":            {watchEvent{name: "foreign", version: "", uid: "z"}, false},
		"goes back":               {watchEvent{name: "a", version: "1", before: "2", uid: "x"}, true},
		"goes where nobody asked": {watchEvent{name: "a", version: "3", before: "1", uid: "x"}, true},
		"is deleted when reached": {watchEvent{name: "a", version: "2", before: "2", uid: "x", deleted: true}, true},
		"is recreated":            {watchEvent{name: "a", version: "2", before: "1", uid: "other"}, true},
	} {
		s := &stream{from: "1", to: "2", uids: map[string]types.UID{"a": "x"}}
		s.judge(tc.event)
		if err := errors.Join(s.wrong...); (err != nil) != tc.wrong {
			t.Errorf("an object that %s: wrong is %v, want %t", name, err, tc.wrong)
		}
	}
}
