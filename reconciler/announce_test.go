// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
)

func drifted(name string) apply.Notice {
	return apply.Notice{ID: payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: name}, What: apply.ReasonDriftRepaired}
}

func TestEventsOfAMomentAreOne(t *testing.T) {
	a := newAnnouncer(func() time.Time { return epoch })
	for i := range 8 {
		a.hear(drifted(fmt.Sprintf("c%d", i)))
	}
	a.hear(apply.Notice{ID: payload.ObjectID{Kind: "Namespace", Name: "old"}, What: apply.ReasonOrphaned, Detail: "a controller owns it"})
	want := []announcement{
		{apply.ReasonDriftRepaired, "changed or removed by others, and put back: ConfigMap web/c0; ConfigMap web/c1; ConfigMap web/c2; ConfigMap web/c3; ConfigMap web/c4; and 3 more"},
		{apply.ReasonOrphaned, "left the release and kept in the cluster: Namespace old (a controller owns it)"},
	}
	if diff := cmp.Diff(want, a.take(), cmp.AllowUnexported(announcement{})); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if got := a.take(); got != nil {
		t.Errorf("told twice: %v", got)
	}
}

func TestAnObjectThatIsContestedIsToldOfOnceInAWhile(t *testing.T) {
	now := epoch
	a := newAnnouncer(func() time.Time { return now })
	said := 0
	var last string
	for range 3600 {
		a.hear(drifted("contested"))
		for _, x := range a.take() {
			said++
			last = x.message
		}
		now = now.Add(time.Second)
	}
	if said != 6 || !strings.HasSuffix(last, "ConfigMap web/contested, 599 times more in between") {
		t.Errorf("%d events in an hour, the last: %s", said, last)
	}
}

func TestWhatWasToldIsBounded(t *testing.T) {
	a := newAnnouncer(func() time.Time { return epoch })
	for i := range 3 * maxNotices {
		a.hear(drifted(fmt.Sprint(i)))
	}
	if len(a.told) > maxNotices || len(a.pending[apply.ReasonDriftRepaired].lines) != namedNotices {
		t.Errorf("%d remembered, %d named", len(a.told), len(a.pending[apply.ReasonDriftRepaired].lines))
	}
}

func TestEventsAreGatheredBeforeTheyAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnnouncer(time.Now)
		ctx, cancel := context.WithCancel(t.Context())
		var got []announcement
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.run(ctx, func(x announcement) { got = append(got, x) })
		}()
		a.hear(drifted("a"))
		synctest.Wait()
		a.hear(drifted("b"))
		time.Sleep(2 * gatherNotices)
		synctest.Wait()
		cancel()
		<-done
		if len(got) != 1 || !strings.HasSuffix(got[0].message, "ConfigMap web/a; ConfigMap web/b") {
			t.Errorf("events: %v", got)
		}
	})
}

func TestARefusalOfAnotherReleaseIsNews(t *testing.T) {
	refused := func(version string) *v1alpha1.ClusterRelease {
		obj := &v1alpha1.ClusterRelease{}
		obj.Status.Desired = &v1alpha1.ReleaseRef{Version: version}
		obj.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleaseAccepted, Status: "False", Reason: "Unsigned", Message: version + " has no signature"}}
		return obj
	}
	events := &heard{}
	b := base{events: events}
	b.announce(&v1alpha1.ClusterRelease{}, refused("1.1.0"))
	b.announce(refused("1.1.0"), refused("1.1.0"))
	b.announce(refused("1.1.0"), refused("1.1.1"))
	if diff := cmp.Diff([]string{"Warning Unsigned 1.1.0 has no signature", "Warning Unsigned 1.1.1 has no signature"}, events.list); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
