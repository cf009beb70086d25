// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/config/version"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// persist records the accepted and the completed release in the store. A restart
// continues with them, rollbacks are checked against them, and the high-water mark
// is raised by them.
func (r *Controller) persist(ctx context.Context, rt *runtime, obj *v1alpha1.ClusterRelease, w *worker.SyncWorkerStatus) error {
	if w == nil || w.Actual.Version == "" {
		return nil
	}
	accepted := acceptedOf(w.Actual.Desired)
	if !w.Reconciling {
		accepted.State = w.State.String()
	}
	accepted.Waits = longWaits(w.Waits, r.Now())
	if before := r.Store.Release(obj.Name).Accepted; before != nil && sameWaits(before.Waits, accepted.Waits, r.Now()) {
		accepted.Waits = before.Waits
	}
	still := func() bool { return rt.worker.Status().Actual.Equal(w.Actual.Desired) }
	if err := r.Store.SetAcceptedWhile(ctx, obj.Name, accepted, w.EnabledCapabilities, still); err != nil {
		return err
	}
	if w.Applied.Version == "" || !w.Reconciling {
		return nil
	}
	done := state.Completed{
		Identity: w.Applied.Identity, VersionHash: w.Applied.VersionHash, Time: r.Now().UTC(),
	}
	if err := r.runtimes.complete(ctx, obj.Name, w.Applied.Product, done); err != nil {
		return err
	}
	if p := rollbackPermission(&obj.Spec); p != "" && obj.Spec.Rollback.To == w.Applied.Version {
		return r.Store.SpendRollback(ctx, obj.Name, p)
	}
	return nil
}

// beforeApply returns a function that records a release before its first write.
func (r *runtimes) beforeApply(name string) func(context.Context, worker.SyncWork) error {
	return func(ctx context.Context, work worker.SyncWork) error {
		accepted := acceptedOf(work.Desired)
		if work.State != payload.Reconciling {
			accepted.State = work.State.String()
		}
		return r.store.BeginRelease(ctx, name, accepted)
	}
}

// stateOf returns the state in which the worker starts with a release: Initializing
// if none was ever completed, Reconciling for the last completed one, otherwise
// Updating, or RollingBack to a lower version.
func stateOf(record state.Release, desired worker.Desired) payload.State {
	if len(record.Completed) == 0 {
		return payload.Initializing
	}
	if a := record.Accepted; a != nil && a.Identity.Equal(desired.Identity) {
		if unfinished, ok := payload.ParseState(a.State); ok {
			return unfinished
		}
	} else if a != nil && a.State != "" {
		// The apply of another release has started and isn't complete.
		if version.IsRollback(a.Version, desired.Version) {
			return payload.RollingBack
		}
		return payload.Updating
	}
	last := record.Completed[0]
	if last.Identity.Equal(desired.Identity) {
		return payload.Reconciling
	}
	if version.IsRollback(last.Version, desired.Version) {
		return payload.RollingBack
	}
	return payload.Updating
}

// restoreOf returns the state of an earlier process for a new worker.
func restoreOf(record state.Release, spec *v1alpha1.ClusterReleaseSpec) worker.Restore {
	var out worker.Restore
	if a := record.Accepted; a != nil {
		out.Accepted = desiredAt(a, selectionOf(spec))
		out.State, out.Unfinished = payload.ParseState(a.State)
		if len(a.Waits) > 0 {
			out.Waits = make(map[payload.ObjectID]worker.WaitClock, len(a.Waits))
		}
		for _, w := range a.Waits {
			out.Waits[payload.ObjectID(w.Object)] = clockOf(w)
		}
	}
	if len(record.Completed) > 0 {
		c := record.Completed[0]
		out.Applied = worker.Desired{Identity: c.Identity, Selection: selectionOf(spec)}
		if out.Accepted.Identity.Equal(c.Identity) {
			out.Applied = out.Accepted
		}
	}
	return out
}

// whileWaiting returns the release to reconcile while a dependency isn't ready: the
// accepted one is still repaired, only the next one waits. It returns false if
// none was accepted.
func whileWaiting(accepted *state.Accepted, desired worker.Desired) (worker.Desired, bool) {
	if accepted == nil {
		return worker.Desired{}, false
	}
	current := desiredAt(accepted, desired.Selection)
	if current.Equal(desired) {
		return desired, true
	}
	return current, true
}

// acceptedOf returns the record of an accepted release.
func acceptedOf(d worker.Desired) state.Accepted {
	a := state.Accepted{Identity: d.Identity, Signatures: d.Signatures, Selection: encodeSelection(d.Selection)}
	if a.Path != "" {
		a.Revision = d.Revision
	}
	return a
}

// desiredAt returns the accepted release as it was desired when it was accepted. A
// record without selection gets the current one.
func desiredAt(accepted *state.Accepted, current payload.Selection) worker.Desired {
	return worker.Desired{
		Identity: accepted.Identity, Signatures: accepted.Signatures, Revision: accepted.Revision,
		Selection: decodeSelection(accepted.Selection, current),
	}
}

// previouslyAccepted reports whether a release is being applied, is installed or was
// before the installed one. Its signatures remain valid after its policy has expired,
// so that a restart continues with it.
func previouslyAccepted(record state.Release, d worker.Desired) bool {
	if a := record.Accepted; a != nil && a.Identity.Equal(d.Identity) {
		return true
	}
	for i, c := range record.Completed {
		if i > 1 {
			break
		}
		if c.Identity.Equal(d.Identity) {
			return true
		}
	}
	return false
}

// encodeSelection returns the persisted form of a selection.
func encodeSelection(s payload.Selection) string {
	raw, err := json.Marshal(s)
	if err != nil {
		return "" // can't happen: the type has only strings and booleans
	}
	return string(raw)
}

// decodeSelection reads a persisted selection; the current one replaces a missing
// or unreadable one.
func decodeSelection(text string, current payload.Selection) payload.Selection {
	var s payload.Selection
	if text == "" || json.Unmarshal([]byte(text), &s) != nil {
		return current
	}
	return s
}

// longWait is the duration after which a wait is persisted. Most waits are shorter,
// and a restart may reset those.
const longWait = 30 * time.Second

// longWaits returns the waits to persist, the longest first.
func longWaits(clocks map[payload.ObjectID]worker.WaitClock, now time.Time) []state.Wait {
	var out []state.Wait
	for id, c := range clocks {
		if c.At(now) >= longWait {
			out = append(out, state.Wait{
				Object: state.Object(id),
				Spent:  metav1.Duration{Duration: c.Spent.Truncate(time.Second)}, Running: c.Running.UTC().Truncate(time.Second),
			})
		}
	}
	slices.SortFunc(out, func(a, b state.Wait) int {
		return cmp.Or(cmp.Compare(clockOf(b).At(now), clockOf(a).At(now)), payload.ObjectID(a.Object).Compare(payload.ObjectID(b.Object)))
	})
	return out[:min(len(out), state.MaxWaits)]
}

// sameWaits reports whether both have the same waits, within a few seconds: a
// change of an object's message alone isn't persisted.
func sameWaits(a, b []state.Wait, now time.Time) bool {
	const tolerance = 5 * time.Second
	return slices.EqualFunc(a, b, func(x, y state.Wait) bool {
		return x.Object == y.Object && x.Running.IsZero() == y.Running.IsZero() && (clockOf(x).At(now)-clockOf(y).At(now)).Abs() < tolerance
	})
}

// clockOf returns the clock of a persisted wait.
func clockOf(w state.Wait) worker.WaitClock {
	return worker.WaitClock{Spent: w.Spent.Duration, Running: w.Running}
}

// nextLongWait returns the time until the next wait becomes long enough to persist;
// zero if none will.
func nextLongWait(clocks map[payload.ObjectID]worker.WaitClock, now time.Time) time.Duration {
	var next time.Duration
	for _, c := range clocks {
		if left := longWait - c.At(now); left > 0 && !c.Running.IsZero() && (next == 0 || left < next) {
			next = left
		}
	}
	return next
}
