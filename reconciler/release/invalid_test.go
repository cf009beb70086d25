// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/test/controlenv"
)

// declaring is a source that declares every object. It counts validations and rejects
// specs without an interval.
type declaring struct{ validations int }

func (*declaring) NotFromSource(client.Object, string, any) status.HeldBy { return status.HeldBy{} }

func (*declaring) RemovedFromGit(string, string) status.HeldBy { return status.HeldBy{} }

func (*declaring) Applying() bool { return false }

func (*declaring) Origin(string, string) (control.Origin, string, bool) {
	return control.Origin{Cluster: "prod"}, "main@sha1:0123", true
}

func (d *declaring) ValidateSpec(_ context.Context, _, _ string, spec any) error {
	d.validations++
	if s, ok := spec.(v1alpha1.ClusterReleaseSpec); ok && s.Interval.Duration > 0 {
		return nil
	}
	return errors.New("ClusterRelease/platform: spec.interval: interval must be between 10s and 24h")
}

// A spec that an earlier version accepted may be invalid for this one: it is reported,
// and only the accepted release is reconciled.
func TestAnInvalidSpecIsReportedAndTheAcceptedReleaseContinues(t *testing.T) {
	e := controlenv.New(t)
	sources := &declaring{}
	r := newController(t, e)
	r.sources = sources
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.runtimes.Start(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	accepted := payload.Identity{Version: "1.0.0", Image: "registry.invalid/platform@sha256:" + strings.Repeat("a", 64)}
	must(t, e.Store.SetAccepted(t.Context(), "invalid-spec", state.Accepted{Identity: accepted}, nil))
	t.Cleanup(func() { must(t, e.Store.DropRelease(context.WithoutCancel(t.Context()), "invalid-spec")) })
	obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Name: "invalid-spec", UID: "1", Generation: 1}}
	obj.Spec.Desired = v1alpha1.DesiredRelease{Version: "1.1.0", Image: "registry.invalid/platform@sha256:" + strings.Repeat("b", 64)}
	act := func() *v1alpha1.ClusterReleaseStatus {
		t.Helper()
		facts := status.ReleaseFacts{Spec: obj.Spec, Generation: obj.Generation, Now: epoch}
		var rt *runtime
		for deadline := time.Now().Add(10 * time.Second); ; {
			var err error
			if rt, err = r.act(t.Context(), obj.DeepCopy(), &facts); err == nil {
				break
			}
			if !errors.Is(err, context.Canceled) || time.Now().After(deadline) { // the group isn't running yet
				t.Fatal(err)
			}
		}
		facts.Worker = rt.worker.Status()
		s := status.Release(obj.Status, facts)
		return &s
	}
	s := act()
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionInvalid); c == nil || c.Status != "True" || c.Reason != "InvalidSpec" || !strings.Contains(c.Message, "spec.interval") {
		t.Errorf("Invalid: %+v", c)
	}
	for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReleaseAccepted} {
		if c := meta.FindStatusCondition(s.Conditions, name); c == nil || c.Status != "False" || c.Reason != "InvalidSpec" {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if got := r.runtimes.get(obj.Name).worker.Desired(); !got.Identity.Equal(accepted) {
		t.Errorf("the worker has %+v, want the accepted release", got)
	}
	act()
	if sources.validations != 1 {
		t.Errorf("one generation was validated %d times", sources.validations)
	}
	obj.Generation, obj.Spec.Interval.Duration = 2, time.Minute
	s = act()
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionInvalid); c == nil || c.Status != "False" {
		t.Errorf("Invalid after the correction: %+v", c)
	}
	if got := r.runtimes.get(obj.Name).worker.Desired(); got.Version != "1.1.0" {
		t.Errorf("the worker has %+v, want the desired release", got)
	}
	r.specs.drop(obj.Name)
	r.runtimes.end(obj.Name)
}
