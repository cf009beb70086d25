// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
	"github.com/lockstep-dev/lockstep/test/controlenv"
)

// A process starts with the current spec, the store and the inventory. A capability
// that an earlier process enabled must remain enabled whatever the spec is.
func TestARestartKeepsEnabledCapabilities(t *testing.T) {
	b := controlenv.New(t)
	applier(t, b.Kube)
	for name, dropped := range map[string]bool{"persisted": false, "inventory": true} {
		name := "capability-" + name
		tree := fstest.MapFS{
			"release-manifests/release-metadata": {Data: []byte(`{"kind":"cincinnati-metadata-v0","name":"platform","version":"1.0.0"}`)},
			"release-manifests/0000_10_web_00.yaml": {Data: []byte(
				"{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + "-base, namespace: default}}\n---\n" +
					"{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", namespace: default, annotations: {lockstep.dev/capability: Extra}}}\n")},
		}
		for _, n := range []string{name, name + "-base"} {
			obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: n, Namespace: "default"}}
			t.Cleanup(func() { must(t, client.IgnoreNotFound(b.Client.Delete(context.WithoutCancel(t.Context()), obj))) })
		}
		process := func(s payload.Selection) *payload.Payload {
			r := newController(t, b).runtimes
			rt := runtimeOf(t, r, name)
			defer rt.close()
			p, err := payload.LoadUnverified(tree, r.managed(rt).options(s))
			must(t, err)
			must(t, rt.builder.Begin(t.Context(), p))
			for i := range p.Manifests {
				_, err := rt.builder.Apply(t.Context(), &p.Manifests[i], payload.Initializing)
				must(t, err)
			}
			_, err = rt.builder.Prune(t.Context(), p)
			must(t, err)
			must(t, rt.engine.Flush(t.Context()))
			must(t, b.Store.SetAccepted(t.Context(), name, state.Accepted{Identity: payload.Identity{Version: p.Version}}, p.EnabledCapabilities))
			return p
		}
		process(payload.Selection{Baseline: payload.BaselineNone, Capabilities: []string{"Extra"}})
		if dropped {
			must(t, b.Store.DropRelease(t.Context(), name))
		}
		for range 2 {
			b.Reload()
			p := process(payload.Selection{Baseline: payload.BaselineNone})
			if diff := cmp.Diff([]string{"Extra"}, p.ImplicitCapabilities); diff != "" {
				t.Errorf("%s: implicit capabilities (-want +got):\n%s", name, diff)
			}
		}
		if !b.Exists(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}) {
			t.Errorf("%s: a restart deleted the objects of the capability", name)
		}
	}
}

// The desired release is loaded right after the accepted one of an earlier process,
// whose objects are managed then.
func TestTheDesiredReleaseIsLoadedAfterTheRestoredOne(t *testing.T) {
	b := controlenv.New(t)
	r := newController(t, b).runtimes
	loaded := make(chan string, 2)
	rt := runtimeOf(t, r, "restored")
	defer rt.close()
	var err error
	rt.worker, err = worker.New(worker.Config{
		Retriever: loads(func(d worker.Desired) {
			before := "nothing"
			if p := r.managed(rt).options(d.Selection).Previous; p != nil {
				before = p.Version
			}
			loaded <- d.Version + " after " + before
		}),
		Preconditions: idle{}, Builder: idle{}, Interval: time.Hour, Now: time.Now,
		Restore: worker.Restore{Accepted: worker.Desired{Identity: payload.Identity{Version: "1.0.0", Image: "a"}}},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		rt.worker.Start(ctx, 1)
	}()
	defer func() {
		cancel()
		<-done
	}()
	rt.worker.Update(1, worker.Desired{Identity: payload.Identity{Version: "1.1.0", Image: "b"}}, nil, payload.Updating)
	for _, want := range []string{"1.0.0 after nothing", "1.1.0 after 1.0.0"} {
		select {
		case got := <-loaded:
			if got != want {
				t.Errorf("loaded %s, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("a minute without a load; want %s", want)
		}
	}
}

// runtimeOf returns the runtime of a release before its worker starts.
func runtimeOf(t *testing.T, r *runtimes, name string) *runtime {
	t.Helper()
	engine, err := r.engine(t.Context(), name, serviceAccountOf(""), nil)
	must(t, err)
	checker, err := health.NewChecker(r.cluster.Live, time.Now)
	must(t, err)
	rt := &runtime{name: name, engine: engine, builder: &objectBuilder{
		engine: engine, health: checker, monitor: checker.NewMonitor(func(*payload.Manifest, health.Verdict) {}),
		now: time.Now, policy: buildPolicy{prune: true, maxPercent: 100},
	}}
	rt.worker, err = worker.New(worker.Config{
		Retriever: loads(nil), Preconditions: idle{}, Builder: idle{}, Interval: time.Hour, Now: time.Now,
	})
	must(t, err)
	return rt
}

// loads is a retriever of empty payloads that reports each load.
type loads func(worker.Desired)

func (l loads) RetrievePayload(_ context.Context, d worker.Desired) (worker.PayloadInfo, error) {
	l(d)
	return worker.PayloadInfo{Payload: &payload.Payload{Version: d.Version, VersionHash: "sha256:" + d.Version}}, nil
}

// idle is a builder and a set of checks that does nothing.
type idle struct{}

func (idle) Check(context.Context, worker.Desired, *payload.Payload, worker.Current) ([]precondition.Violation, error) {
	return nil, nil
}

func (idle) DryRun(context.Context, *payload.Payload) error { return nil }

func (idle) Begin(context.Context, *payload.Payload) error { return nil }

func (idle) Apply(context.Context, *payload.Manifest, payload.State) (worker.Written, error) {
	return worker.Written{Done: true}, nil
}

func (idle) Await(context.Context, *payload.Manifest, worker.Written, time.Duration) error {
	return nil
}

func (idle) Prune(context.Context, *payload.Payload) (worker.Pruning, error) {
	return worker.Pruning{}, nil
}
