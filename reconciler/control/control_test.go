// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/pkg/runtime/metrics"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/state"
)

// recorded records events.
type recorded struct{ list []string }

func (r *recorded) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.list = append(r.list, kind+" "+reason+" "+fmt.Sprintf(note, args...))
}

func (r *recorded) AnnotatedEventf(a, b runtime.Object, _ map[string]string, kind, reason, action, note string, args ...any) {
	r.Eventf(a, b, kind, reason, action, note, args...)
}

func TestARejectionOfAnotherReleaseIsATransition(t *testing.T) {
	rejected := func(version string) *v1alpha1.ClusterRelease {
		obj := &v1alpha1.ClusterRelease{}
		obj.Status.Desired = &v1alpha1.ReleaseRef{Version: version}
		obj.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleaseAccepted, Status: "False", Reason: "Unsigned", Message: version + " has no signature"}}
		return obj
	}
	events := &recorded{}
	b := Base{Events: events}
	b.emitTransitions(&v1alpha1.ClusterRelease{}, rejected("1.1.0"))
	b.emitTransitions(rejected("1.1.0"), rejected("1.1.0"))
	b.emitTransitions(rejected("1.1.0"), rejected("1.1.1"))
	if diff := cmp.Diff([]string{"Warning Unsigned 1.1.0 has no signature", "Warning Unsigned 1.1.1 has no signature"}, events.list); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// samples returns the samples of a metric, by the values of its labels.
func samples(t *testing.T, name string, collectors ...prometheus.Collector) map[string]*dto.Metric {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.Metric{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out[strings.Join(labels, " ")] = m
		}
	}
	return out
}

// schemeOnly is a client that has only a scheme.
type schemeOnly struct {
	client.Client
	scheme *runtime.Scheme
}

func (c schemeOnly) Scheme() *runtime.Scheme { return c.scheme }

func TestADeletedObjectHasNoMetrics(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	b := Base{Metrics: metrics.NewRecorder(), Client: schemeOnly{scheme: scheme}}
	obj := &v1alpha1.ClusterRelease{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "platform"}}
	obj.Spec.Suspend = true
	obj.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: "False"}}
	b.RecordDuration(v1alpha1.KindClusterRelease, obj.Name, time.Now())
	b.record(obj)
	for name, want := range map[string]int{"gotk_reconcile_duration_seconds": 1, "gotk_suspend_status": 1, "gotk_reconcile_condition": 3} {
		if got := samples(t, name, b.Metrics.Collectors()...); len(got) != want {
			t.Errorf("%s: %v, want %d samples", name, got, want)
		}
	}
	if s := samples(t, "gotk_suspend_status", b.Metrics.Collectors()...)["ClusterRelease platform lockstep-system"]; s.GetGauge().GetValue() != 1 {
		t.Errorf("a suspended release: %v", s)
	}
	b.DeleteMetrics(v1alpha1.KindClusterRelease, obj.Name)
	for _, name := range []string{"gotk_reconcile_duration_seconds", "gotk_suspend_status", "gotk_reconcile_condition"} {
		if got := samples(t, name, b.Metrics.Collectors()...); len(got) != 0 {
			t.Errorf("left: %v", got)
		}
	}
}

func TestHostsOfURLs(t *testing.T) {
	for raw, want := range map[string]string{
		"ssh://git@git.example.com/fleet.git": "git.example.com", "https://git.example.com:8443/fleet.git": "git.example.com:8443",
		"file:///srv/fleet.git": "",
	} {
		if got, err := HostOf(raw); err != nil || got != want {
			t.Errorf("HostOf(%s) = %q, %v", raw, got, err)
		}
	}
	if _, err := HostOf("fleet.git"); err == nil {
		t.Error("a URL without a host is accepted")
	}
	if got := redactURL("https://me:hunter2@git.example.com/x?token=hunter2"); got != "https://git.example.com/x" {
		t.Errorf("redacted URL %q", got)
	}
}

func TestAConflictOfTheStoreEndsTheProcess(t *testing.T) {
	var got error
	b := Base{Fatal: func(err error) { got = err }}
	controller := b.Guard(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{}, fmt.Errorf("write: %w", state.ErrConflict)
	}))
	_, err := controller.Reconcile(t.Context(), reconcile.Request{})
	if err == nil || !errors.Is(got, state.ErrConflict) {
		t.Errorf("the process continues: %v, %v", got, err)
	}
}
