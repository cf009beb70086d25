// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
)

func drifted(name string) apply.Notice {
	return apply.Notice{ID: payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: name}, What: apply.ReasonDriftRepaired}
}

func TestNoticesAreCombinedIntoOneEventPerKind(t *testing.T) {
	a := newNotifier(func() time.Time { return epoch })
	for i := range 8 {
		a.add(drifted(fmt.Sprintf("c%d", i)))
	}
	a.add(apply.Notice{ID: payload.ObjectID{Kind: "Namespace", Name: "old"}, What: apply.ReasonOrphaned, Detail: "a controller owns it"})
	want := []objectEvent{
		{apply.ReasonDriftRepaired, "restored after external changes: ConfigMap web/c0; ConfigMap web/c1; ConfigMap web/c2; ConfigMap web/c3; ConfigMap web/c4; and 3 more"},
		{apply.ReasonOrphaned, "removed from the release and kept in the cluster: Namespace old (a controller owns it)"},
	}
	if diff := cmp.Diff(want, a.take(), cmp.AllowUnexported(objectEvent{})); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got := a.take(); got != nil {
		t.Errorf("sent twice: %v", got)
	}
}

func TestNoticesAboutAContestedObjectAreNotRepeated(t *testing.T) {
	now := epoch
	a := newNotifier(func() time.Time { return now })
	sent := 0
	var last string
	for range 3600 {
		a.add(drifted("contested"))
		for _, x := range a.take() {
			sent++
			last = x.message
		}
		now = now.Add(time.Second)
	}
	if sent != 6 || !strings.HasSuffix(last, "ConfigMap web/contested, 599 more times since the last event") {
		t.Errorf("%d events in an hour, the last: %s", sent, last)
	}
}

func TestTrackedNoticesAreLimited(t *testing.T) {
	a := newNotifier(func() time.Time { return epoch })
	for i := range 3 * maxTracked {
		a.add(drifted(fmt.Sprint(i)))
	}
	if len(a.sent) > maxTracked || len(a.pending[apply.ReasonDriftRepaired].lines) != maxNamed {
		t.Errorf("%d tracked, %d named", len(a.sent), len(a.pending[apply.ReasonDriftRepaired].lines))
	}
}

func TestNoticesAreGatheredBeforeTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newNotifier(time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		var got []objectEvent
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.run(ctx, func(x objectEvent) { got = append(got, x) })
		}()
		a.add(drifted("a"))
		synctest.Wait()
		a.add(drifted("b"))
		time.Sleep(2 * batchTime)
		synctest.Wait()
		cancel()
		<-done
		if len(got) != 1 || !strings.HasSuffix(got[0].message, "ConfigMap web/a; ConfigMap web/b") {
			t.Errorf("events: %v", got)
		}
	})
}
