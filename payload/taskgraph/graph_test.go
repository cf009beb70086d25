// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"

	"github.com/lockstep-dev/lockstep/payload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manifest parses "run level/component Kind namespace/name".
func manifest(tb testing.TB, spec string) payload.Manifest {
	tb.Helper()
	fields := strings.Fields(spec)
	namespace, name, found := strings.Cut(fields[2], "/")
	if !found {
		namespace, name = "", namespace
	}
	object := map[string]any{
		"apiVersion": apiVersions[fields[1]], "kind": fields[1],
		"metadata": map[string]any{"name": name, "namespace": namespace},
	}
	if object["apiVersion"] == nil {
		object["apiVersion"] = "example.com/v1"
	}
	if fields[1] == "CustomResourceDefinition" {
		object["spec"] = map[string]any{"group": "example.com", "names": map[string]any{"kind": name}}
	}
	m, err := payload.NewManifest(&unstructured.Unstructured{Object: object})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := fmt.Sscanf(strings.ReplaceAll(fields[0], "/", " "), "%d %s", &m.RunLevel, &m.Component); err != nil {
		tb.Fatal(err)
	}
	return m
}

var apiVersions = map[string]any{
	"Namespace": "v1", "ConfigMap": "v1", "Service": "v1", "ServiceAccount": "v1", "Deployment": "apps/v1", "Job": "batch/v1",
	"Role": "rbac.authorization.k8s.io/v1", "CustomResourceDefinition": "apiextensions.k8s.io/v1", "NodeOS": "lockstep.dev/v1alpha1",
	"ValidatingWebhookConfiguration": "admissionregistration.k8s.io/v1",
}

func manifests(tb testing.TB, specs ...string) []payload.Manifest {
	tb.Helper()
	out := make([]payload.Manifest, len(specs))
	for i, spec := range specs {
		out[i] = manifest(tb, spec)
	}
	return out
}

// walked returns the names in the order in which a single worker applies them.
func walked(t *testing.T, g *Graph, fail ...string) ([]string, Result) {
	t.Helper()
	var order []string
	r := Walk(t.Context(), g, 1, func(_ context.Context, m *payload.Manifest) error {
		order = append(order, m.ID.Name)
		if slices.Contains(fail, m.ID.Name) {
			return errors.New("refused")
		}
		return nil
	}, nil)
	return order, r
}

func TestUpdatingAppliesRunLevelByRunLevel(t *testing.T) {
	ms := manifests(t, "10/b ConfigMap b1", "10/b ConfigMap b2", "20/c ConfigMap c1", "00/a ConfigMap a1", "10/d ConfigMap d1", "20/b ConfigMap b3")
	order, r := walked(t, Build(ms, payload.Updating, Order{}))
	if diff := cmp.Diff([]string{"a1", "b1", "b2", "d1", "c1", "b3"}, order); diff != "" || !r.Complete() {
		t.Errorf("order (-want +got):\n%s%+v", diff, r)
	}
}

func TestAFileWithoutARunLevelKeepsItsPosition(t *testing.T) {
	ms := manifests(t, "10/a ConfigMap a", "20/b ConfigMap b", "-1/x ConfigMap x", "30/c ConfigMap c")
	order, _ := walked(t, Build(ms, payload.Updating, Order{}))
	if diff := cmp.Diff([]string{"a", "b", "x", "c"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestAFailureBlocksOnlyDependentManifests(t *testing.T) {
	ms := manifests(t, "10/a ConfigMap a1", "10/a ConfigMap a2", "10/b ConfigMap b1", "20/c ConfigMap c1")
	order, r := walked(t, Build(ms, payload.Updating, Order{Serial: true}), "a1")
	if diff := cmp.Diff([]string{"a1", "b1"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if r.Done != 1 || len(r.Failures) != 1 || r.Blocked != 2 || r.Complete() {
		t.Errorf("result %+v", r)
	}
}

func TestAJobIsABarrierInItsComponent(t *testing.T) {
	ms := manifests(t, "10/a ConfigMap a1", "10/a Job j", "10/a ConfigMap a2", "10/b ConfigMap b1")
	for _, state := range []payload.State{payload.Updating, payload.Initializing} {
		order, r := walked(t, Build(ms, state, Order{}), "j")
		if slices.Contains(order, "a2") || !slices.Contains(order, "b1") || slices.Index(order, "a1") > slices.Index(order, "j") {
			t.Errorf("%s: order %v, result %+v", state, order, r)
		}
	}
}

func TestInitializingAppliesDependenciesFirst(t *testing.T) {
	ms := manifests(t,
		"10/a ValidatingWebhookConfiguration hook", "10/a Deployment web/api", "10/a Role web/role", "90/b Widget other/widget",
		"95/c CustomResourceDefinition Widget", "95/c Namespace web", "95/c ConfigMap web/late")
	order, r := walked(t, Build(ms, payload.Initializing, Order{}))
	if !r.Complete() {
		t.Errorf("result %+v", r)
	}
	for _, pair := range [][2]string{{"Widget", "widget"}, {"web", "api"}, {"web", "role"}, {"role", "api"}, {"api", "hook"}, {"web", "late"}} {
		if slices.Index(order, pair[0]) > slices.Index(order, pair[1]) {
			t.Errorf("%s comes before %s in %v", pair[1], pair[0], order)
		}
	}
}

func TestInitializingContinuesAfterAFailure(t *testing.T) {
	ms := manifests(t, "10/a Role web/role", "10/a Deployment web/api", "10/a Namespace gone", "10/a ConfigMap gone/c", "10/a ConfigMap web/d")
	order, r := walked(t, Build(ms, payload.Initializing, Order{}), "role", "gone")
	if !slices.Contains(order, "api") || !slices.Contains(order, "d") || slices.Contains(order, "c") || r.Blocked != 1 {
		t.Errorf("order %v, result %+v", order, r)
	}
}

func TestRollingBackStartsWithRollbackFirst(t *testing.T) {
	ms := manifests(t, "00/a ConfigMap a", "80/os NodeOS lockstep-system/workers", "90/b ConfigMap b")
	order, r := walked(t, Build(ms, payload.RollingBack, Order{}))
	if diff := cmp.Diff([]string{"workers", "a", "b"}, order); diff != "" || !r.Complete() {
		t.Errorf("order (-want +got):\n%s%+v", diff, r)
	}
	order, _ = walked(t, Build(ms, payload.RollingBack, Order{}), "workers")
	if len(order) != 1 {
		t.Errorf("applied after a failure: %v", order)
	}
}

func TestReconcilingRotatesTheOrderWithEachAttempt(t *testing.T) {
	var specs []string
	for i := range 64 {
		specs = append(specs, fmt.Sprintf("10/a ConfigMap c%d", i))
	}
	ms := manifests(t, specs...)
	first := map[string]bool{}
	for attempt := range 2 * attemptsPerShuffle {
		order, _ := walked(t, Build(ms, payload.Reconciling, Order{Seed: 7, Attempt: attempt}))
		again, _ := walked(t, Build(ms, payload.Reconciling, Order{Seed: 7, Attempt: attempt}))
		if !slices.Equal(order, again) {
			t.Errorf("attempt %d has different orders", attempt)
		}
		first[order[0]] = true
	}
	if len(first) < attemptsPerShuffle {
		t.Errorf("%d different first manifests in %d attempts, want at least %d", len(first), 2*attemptsPerShuffle, attemptsPerShuffle)
	}
}

func TestAWalkEndsWithItsContext(t *testing.T) {
	ms := manifests(t, "10/a ConfigMap a", "10/a ConfigMap b", "20/c ConfigMap c")
	ctx, cancel := context.WithCancel(t.Context())
	r := Walk(ctx, Build(ms, payload.Updating, Order{Serial: true}), 4, func(context.Context, *payload.Manifest) error {
		cancel()
		return nil
	}, nil)
	if r.Done != 1 || r.Unreached != 1 || r.Blocked != 1 {
		t.Errorf("result %+v, want 1 done, 1 unreached, 1 blocked", r)
	}
}

func TestAWalkOfAnEmptyGraphIsComplete(t *testing.T) {
	if r := Walk(t.Context(), Build(nil, payload.Updating, Order{}), 4, nil, nil); !r.Complete() {
		t.Errorf("result %+v", r)
	}
}

var allStates = []payload.State{payload.Initializing, payload.Updating, payload.RollingBack, payload.Reconciling}

// drawManifests draws a payload of a few namespaces, CRDs, components and run
// levels, some with rollback-first.
func drawManifests(tb testing.TB, t *rapid.T) []payload.Manifest {
	tb.Helper()
	kinds := []string{"Namespace", "CustomResourceDefinition", "Role", "ServiceAccount", "Deployment", "Job", "ConfigMap", "NodeOS", "K0", "K1", "ValidatingWebhookConfiguration"}
	n := rapid.IntRange(0, 40).Draw(t, "n")
	out := make([]payload.Manifest, n)
	for i := range out {
		kind := rapid.SampledFrom(kinds).Draw(t, "kind")
		name := fmt.Sprintf("n%d", i)
		switch kind {
		case "Namespace":
			name = "ns" + fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "ns"))
		case "CustomResourceDefinition":
			name = "K" + fmt.Sprint(rapid.IntRange(0, 1).Draw(t, "crd"))
		}
		spec := fmt.Sprintf("%d/%c %s ns%d/%s", rapid.IntRange(-1, 4).Draw(t, "level"), 'a'+rune(rapid.IntRange(0, 3).Draw(t, "component")),
			kind, rapid.IntRange(0, 3).Draw(t, "in"), name)
		out[i] = manifest(tb, spec)
	}
	return out
}

func TestEveryManifestIsAppliedOnceByAtMostTheGivenWorkers(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ms := drawManifests(t, r)
		state := rapid.SampledFrom(allStates).Draw(r, "state")
		workers := rapid.IntRange(1, 5).Draw(r, "workers")
		g := Build(ms, state, Order{Seed: 1, Attempt: rapid.IntRange(0, 9).Draw(r, "attempt")})
		var mu sync.Mutex
		seen := map[*payload.Manifest]int{}
		var running, most atomic.Int32
		result := Walk(t.Context(), g, workers, func(_ context.Context, m *payload.Manifest) error {
			if now := running.Add(1); now > most.Load() {
				most.Store(now)
			}
			defer running.Add(-1)
			mu.Lock()
			defer mu.Unlock()
			seen[m]++
			return nil
		}, nil)
		if !result.Complete() || result.Done != len(ms) || len(seen) != len(ms) {
			r.Fatalf("%d of %d manifests seen, result %+v", len(seen), len(ms), result)
		}
		for m, times := range seen {
			if times != 1 {
				r.Fatalf("%s applied %d times", m.ID, times)
			}
		}
		if int(most.Load()) > workers {
			r.Fatalf("%d ran at once, want at most %d", most.Load(), workers)
		}
	})
}

func TestAFailedWalkAccountsForEveryManifest(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ms := drawManifests(t, r)
		g := Build(ms, rapid.SampledFrom(allStates).Draw(r, "state"), Order{})
		bad := rapid.IntRange(1, 7).Draw(r, "bad")
		calls := atomic.Int32{}
		result := Walk(t.Context(), g, 3, func(context.Context, *payload.Manifest) error {
			if int(calls.Add(1))%bad == 0 {
				return errors.New("refused")
			}
			return nil
		}, nil)
		if all := result.Done + len(result.Failures) + result.Blocked + result.Unreached; all != len(ms) {
			r.Fatalf("%d of %d manifests are accounted for: %+v", all, len(ms), result)
		}
	})
}

func TestRunLevelsAreBarriers(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ms := drawManifests(t, r)
		g := Build(ms, payload.Updating, Order{})
		b := &builder{Graph: g}
		levels := b.effectiveLevels()
		levelOf := map[*payload.Manifest]int{}
		for i := range ms {
			levelOf[&g.manifests[i]] = levels[i]
		}
		highest := -1
		Walk(t.Context(), g, 1, func(_ context.Context, m *payload.Manifest) error {
			if levelOf[m] < highest {
				r.Fatalf("%s of run level %d after run level %d", m.ID, levelOf[m], highest)
			}
			highest = levelOf[m]
			return nil
		}, nil)
	})
}

func TestEdgesGrowLinearlyWithManifests(t *testing.T) {
	var specs []string
	for level := range 4 {
		for component := range 500 {
			specs = append(specs, fmt.Sprintf("%d/c%d ConfigMap m%d-%d", level, component, level, component))
		}
	}
	for _, state := range allStates {
		g := Build(manifests(t, specs...), state, Order{})
		edges := 0
		for i := range g.nodes {
			edges += len(g.nodes[i].out)
		}
		if edges > 3*len(specs) {
			t.Errorf("%s: %d edges for %d manifests", state, edges, len(specs))
		}
	}
}

func TestRendering(t *testing.T) {
	ms := manifests(t, "10/a ConfigMap x/a", "10/a Role x/b", "10/a Role x/d", "20/b Job x/c")
	g := Build(ms, payload.Updating, Order{})
	var text, serial, dot strings.Builder
	if err := errors.Join(g.WriteText(&text), g.WriteDOT(&dot), Build(ms, payload.Updating, Order{Serial: true}).WriteText(&serial)); err != nil {
		t.Fatal(err)
	}
	const wantText = `Updating: 4 manifests in 4 nodes, 3 deep, the largest has 1
step 1: 2 in parallel
  10/a                                        2  2 Role
step 2: 1 in parallel
  10/a                                        1  ConfigMap x/a
step 3: 1 in parallel
  20/b                                        1  batch Job x/c
`
	const wantSerial = `Updating: 4 manifests in 2 nodes, 2 deep, the largest has 3
step 1: 1 in parallel
  10/a                                        3  ConfigMap, 2 Role
step 2: 1 in parallel
  20/b                                        1  batch Job x/c
`
	const wantDOT = `digraph "Updating" {
  rankdir=LR
  node [shape=box]
  n0 [label="10/a\n1", tooltip="rbac.authorization.k8s.io Role x/b"]
  n1 [label="10/a\n1", tooltip="rbac.authorization.k8s.io Role x/d"]
  n2 [label="ready: 10/a\n2", tooltip="rbac.authorization.k8s.io Role x/b\nrbac.authorization.k8s.io Role x/d", shape=ellipse]
  n3 [label="10/a\n1", tooltip="ConfigMap x/a"]
  n4 [label="ready: 10/a\n1", tooltip="ConfigMap x/a", shape=ellipse]
  n5 [label="20/b\n1", tooltip="batch Job x/c"]
  n6 [label="ready: 20/b\n1", tooltip="batch Job x/c", shape=ellipse]
  n0 -> n2
  n1 -> n2
  n2 -> n3
  n3 -> n4
  n4 -> n5
  n5 -> n6
}
`
	if diff := cmp.Diff(wantText, text.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantSerial, serial.String()); diff != "" {
		t.Errorf("text of a serial graph (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantDOT, dot.String()); diff != "" {
		t.Errorf("DOT (-want +got):\n%s", diff)
	}
}

func BenchmarkGraphOf20000Tasks(b *testing.B) {
	specs := make([]string, 20_000)
	for i := range specs {
		specs[i] = fmt.Sprintf("%d/c%d ConfigMap ns%d/m%d", i/1000, i%200, i%50, i)
	}
	ms := manifests(b, specs...)
	for _, state := range allStates {
		b.Run(state.String(), func(b *testing.B) {
			for b.Loop() {
				if r := Walk(b.Context(), Build(ms, state, Order{}), 8, func(context.Context, *payload.Manifest) error { return nil }, nil); r.Done != len(ms) {
					b.Fatalf("%+v", r)
				}
			}
		})
	}
}
