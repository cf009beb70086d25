// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
	"github.com/lockstep-dev/lockstep/test/controlenv"
)

func TestHealthErrorsFollowTheComponentPolicy(t *testing.T) {
	b := &objectBuilder{policy: buildPolicy{timeout: time.Hour, components: map[string]componentPolicy{
		"monitoring": {warn: true}, "quick": {timeout: time.Minute},
	}}}
	busy := health.Verdict{Reason: "InProgress", Message: "1 of 2"}
	for name, tc := range map[string]struct {
		component string
		id        payload.ObjectID
		verdict   health.Verdict
		effect    worker.Effect
		grace     time.Duration
	}{
		"a rollout in progress has minutes":      {"web", payload.ObjectID{Group: "apps", Kind: "Deployment"}, busy, worker.EffectFailAfterInterval, unhealthyGrace},
		"at most the timeout of its component":   {"quick", payload.ObjectID{Group: "apps", Kind: "Deployment"}, busy, worker.EffectFailAfterInterval, time.Minute},
		"a NodeOS has the timeout of an update":  {"web", payload.ObjectID{Group: payload.Group, Kind: payload.KindNodeOS}, busy, worker.EffectFailAfterInterval, time.Hour},
		"a reported failure has no grace":        {"web", payload.ObjectID{Group: "batch", Kind: "Job"}, health.Verdict{Failed: true, Reason: "JobFailed"}, worker.EffectFailAfterInterval, 0},
		"a closed window is no failure":          {"web", payload.ObjectID{Group: payload.Group, Kind: payload.KindNodeOS}, health.Verdict{Waiting: true, Reason: "OutsideWindow"}, worker.EffectNone, 0},
		"policy warn only reports":               {"monitoring", payload.ObjectID{Group: "apps", Kind: "Deployment"}, busy, worker.EffectReport, 0},
		"policy warn only reports a failure too": {"monitoring", payload.ObjectID{Group: "apps", Kind: "Deployment"}, health.Verdict{Failed: true, Reason: "X"}, worker.EffectReport, 0},
		"no component: the timeout of the spec":  {"", payload.ObjectID{Group: payload.Group, Kind: payload.KindNodeOS}, busy, worker.EffectFailAfterInterval, time.Hour},
	} {
		err, grace := b.healthError(&payload.Manifest{ID: tc.id, Component: tc.component}, tc.verdict)
		if err == nil || err.Effect != tc.effect || grace != tc.grace || err.Code != tc.verdict.Reason {
			t.Errorf("%s: %+v after %s, want %s after %s", name, err, grace, tc.effect, tc.grace)
		}
	}
	if err, _ := b.healthError(&payload.Manifest{}, health.Verdict{Ready: true}); err != nil {
		t.Errorf("a healthy object has error %v", err)
	}
}

func TestAComponentThatOnlyWarnsDelaysAnUpdateBriefly(t *testing.T) {
	p := buildPolicy{timeout: time.Hour, components: map[string]componentPolicy{
		"warns": {warn: true}, "patient": {warn: true, timeout: 20 * time.Minute}, "blocks": {}, "quick": {timeout: time.Second},
	}}
	for component, want := range map[string]time.Duration{
		"warns": time.Minute, "patient": 20 * time.Minute, "blocks": time.Hour, "quick": time.Second, "unknown": time.Hour,
	} {
		if got := p.of(component).timeout; got != want {
			t.Errorf("%s waits %s, want %s", component, got, want)
		}
	}
	p.timeout = 10 * time.Second
	if got := p.of("warns").timeout; got != p.timeout {
		t.Errorf("a component that only warns waits %s, longer than all others", got)
	}
}

// waitFor polls until done returns true.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// verdicts are the verdicts of a monitor, in order.
type verdicts struct {
	mu   sync.Mutex
	list []health.Verdict
}

func (v *verdicts) add(_ *payload.Manifest, verdict health.Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.list = append(v.list, verdict)
}

func (v *verdicts) last() health.Verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.list) == 0 {
		return health.Verdict{}
	}
	return v.list[len(v.list)-1]
}

// deployment returns a Deployment that never becomes ready without a scheduler.
func deployment(t *testing.T, name, component string) *payload.Manifest {
	t.Helper()
	m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": name}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": name}},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": "example.com/main:1"}}},
			},
		},
	}})
	must(t, err)
	m.Component = component
	return &m
}

func TestABuilderWaitsByItsPolicy(t *testing.T) {
	b := controlenv.New(t)
	applier(t, b.Kube)
	r := newController(t, b).runtimes
	engine, err := r.engine(t.Context(), "waits", serviceAccountOf(""), nil)
	must(t, err)
	defer engine.Close()
	checker, err := health.NewChecker(r.cluster.Live, time.Now)
	must(t, err)
	seen := &verdicts{}
	monitor := checker.NewMonitor(seen.add)
	defer monitor.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { monitor.Run(ctx) })
	defer group.Wait()
	defer cancel()
	builder := &objectBuilder{engine: engine, health: checker, monitor: monitor, now: time.Now, policy: buildPolicy{
		timeout: time.Hour, components: map[string]componentPolicy{"warns": {warn: true}},
	}}
	blocks, warns := deployment(t, "blocks", "blocks"), deployment(t, "warns", "warns")
	target := &payload.Payload{Manifests: []payload.Manifest{*blocks, *warns}}
	must(t, builder.Begin(t.Context(), target))
	t.Cleanup(func() {
		for _, m := range target.Manifests {
			must(t, client.IgnoreNotFound(b.Client.Delete(context.WithoutCancel(t.Context()), m.Object.DeepCopy())))
		}
	})

	// The timeout is used up; a wait still checks once.
	for _, tc := range []struct {
		m      *payload.Manifest
		effect worker.Effect
	}{{blocks, ""}, {warns, worker.EffectReport}} {
		written, err := builder.Apply(t.Context(), tc.m, payload.Updating)
		must(t, err)
		if written.Done || written.ResourceVersion == "" {
			t.Errorf("%s: %+v, want an object to wait for", tc.m.ID.Name, written)
		}
		err = builder.Await(t.Context(), tc.m, written, time.Hour)
		if control.ReasonOf(err, "") != health.ReasonDeadlineExceeded {
			t.Errorf("%s: Await: %v, want the deadline", tc.m.ID.Name, err)
		}
		var reported *worker.UpdateError
		if errors.As(err, &reported) != (tc.effect != "") || reported != nil && reported.Effect != tc.effect {
			t.Errorf("%s: Await: %#v, want effect %q", tc.m.ID.Name, err, tc.effect)
		}
	}
	waitFor(t, "the monitor to report an unhealthy object", func() bool { return seen.last().Reason == health.ReasonInProgress })
	body := []byte(`{"status":{"observedGeneration":1,"replicas":1,"updatedReplicas":1,"readyReplicas":1,"availableReplicas":1,` +
		`"conditions":[{"type":"Available","status":"True"},{"type":"Progressing","status":"True","reason":"NewReplicaSetAvailable"}]}}`)
	done := make(chan error, 1)
	go func() {
		written, err := builder.Apply(ctx, blocks, payload.Reconciling)
		if err == nil {
			err = builder.Await(ctx, blocks, written, 0)
		}
		done <- err
	}()
	// The Deployment controller may revert the status: repeat the patch.
	waitFor(t, "the wait to end", func() bool {
		must(t, b.Client.Status().Patch(t.Context(), blocks.Object.DeepCopy(), client.RawPatch(types.MergePatchType, body)))
		select {
		case err := <-done:
			must(t, err)
			return true
		default:
			return false
		}
	})
}

// builderOf returns a builder with an engine and an unused monitor.
func builderOf(t *testing.T, engine *apply.Engine, cache *live.Cache) *objectBuilder {
	t.Helper()
	checker, err := health.NewChecker(cache, time.Now)
	must(t, err)
	monitor := checker.NewMonitor(func(*payload.Manifest, health.Verdict) {})
	t.Cleanup(monitor.Close)
	return &objectBuilder{engine: engine, health: checker, monitor: monitor, now: time.Now}
}
