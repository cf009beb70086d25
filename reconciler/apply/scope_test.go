// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// manifestOf returns a manifest with a position.
func manifestOf(t *testing.T, line int, object map[string]any) payload.Manifest {
	t.Helper()
	m, err := payload.NewManifest(&unstructured.Unstructured{Object: object})
	must(t, err)
	m.File, m.Line = "release-manifests/0000_10_web_0000-a.yaml", line
	return m
}

func named(apiVersion, kind, namespace, name string) map[string]any {
	metadata := map[string]any{"name": name}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	return map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
}

func crdOf(kind, scope string) map[string]any {
	o := named("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", strings.ToLower(kind)+"s.example.com")
	o["spec"] = map[string]any{"group": "example.com", "scope": scope, "names": map[string]any{"kind": kind}}
	return o
}

func TestImpossibleScopesAreFoundBeforeARequest(t *testing.T) {
	var asked []string
	mapping := func(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
		asked = append(asked, gvk.Kind)
		switch gvk.Kind {
		case "Served", "Changed":
			return &meta.RESTMapping{GroupVersionKind: gvk, Scope: meta.RESTScopeNamespace}, nil
		default:
			return nil, &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
		}
	}
	objects := []map[string]any{
		named("v1", "ConfigMap", "web", "right"), named("v1", "ConfigMap", "", "a"),
		named("rbac.authorization.k8s.io/v1", "ClusterRole", "", "right"), named("rbac.authorization.k8s.io/v1", "ClusterRole", "web", "b"),
		crdOf("Widget", "Namespaced"), named("example.com/v1", "Widget", "", "c"), named("example.com/v1", "Widget", "web", "right"),
		crdOf("Changed", "Cluster"), named("example.com/v1", "Changed", "", "right"), named("example.com/v1", "Changed", "web", "d"),
		named("example.com/v1", "Served", "", "e"), named("example.com/v1", "Served", "web", "right"), named("example.com/v1", "Served", "", "f"),
		named("example.com/v1", "NotServedYet", "", "right"), named("example.com/v1", "NotServedYet", "web", "right"),
	}
	var ms []payload.Manifest
	for i, o := range objects {
		ms = append(ms, manifestOf(t, i+1, o))
	}
	removed := manifestOf(t, 1, named("v1", "ConfigMap", "", "removed"))
	removed.Delete = true
	var got []string
	for _, p := range checkScopes(append(ms, removed), mapping) {
		if p == nil {
			continue
		}
		var refused *Error
		if !errors.As(p.Err, &refused) || refused.Retriable() || refused.Reason() != ReasonResourceInvalid || refused.ID != p.ID {
			t.Errorf("%v isn't a permanent %s of %s", p.Err, ReasonResourceInvalid, p.ID)
		}
		got = append(got, p.Err.Error())
	}
	want := []string{
		"ConfigMap a: ConfigMap is namespaced, but has no namespace; set metadata.namespace (release-manifests/0000_10_web_0000-a.yaml:2)",
		"rbac.authorization.k8s.io ClusterRole web/b: ClusterRole is cluster-scoped, but has namespace web; remove metadata.namespace (release-manifests/0000_10_web_0000-a.yaml:4)",
		"example.com Widget c: Widget is namespaced, but has no namespace; set metadata.namespace (release-manifests/0000_10_web_0000-a.yaml:6)",
		"example.com Changed web/d: Changed is cluster-scoped, but has namespace web; remove metadata.namespace (release-manifests/0000_10_web_0000-a.yaml:10)",
		"example.com Served e: Served is namespaced, but has no namespace; set metadata.namespace (release-manifests/0000_10_web_0000-a.yaml:11)",
		"example.com Served f: Served is namespaced, but has no namespace; set metadata.namespace (release-manifests/0000_10_web_0000-a.yaml:13)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if want := []string{"Served", "NotServedYet"}; !slices.Equal(asked, want) {
		t.Errorf("the server was asked for %q, want %q once", asked, want)
	}
}

func TestImpossibleObjectsAreRefusedByTheDryRunAndByCheckScope(t *testing.T) {
	env := newEnv(t)
	env.apply(env.manifests(env.widgets(widgetText))[:1], Updating)
	ms := env.manifests(env.widgets(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: NS-reader, namespace: NS}
---
apiVersion: GROUP/v1
kind: Widget
metadata: {name: one}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: right, namespace: NS}
`))
	env.await("the kind to be served", func() bool { return len(env.engine.CheckScope(ms)) == 3 })
	env.requests.take()
	problems, err := env.engine.DryRun(t.Context(), ms)
	must(t, err)
	if len(problems) != 3 {
		t.Errorf("problems: %v, want those of the first three", problems)
	}
	for _, r := range env.requests.take() {
		if strings.Contains(r, "settings") || strings.Contains(r, "reader") || strings.Contains(r, "widgets/one") {
			t.Errorf("%s was sent for an object that can't exist", r)
		}
	}
}

// An older version accepted the first release and recorded the objects.
func TestEntriesOfImpossibleScopeAreForgotten(t *testing.T) {
	env := newEnv(t)
	right := env.manifests("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: NS}\ndata: {a: b}\n")
	env.apply(right, Updating)
	env.crash()
	env.forge(
		inventory.Entry{Version: "v1", Kind: "ConfigMap", Name: "settings"},
		inventory.Entry{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole", Namespace: env.ns, Name: "reader"},
		inventory.Entry{Version: "v1", Kind: "ConfigMap", Name: "applied", Created: true, Record: inventory.Record{UID: "0"}},
	)
	env.start()
	if lines := env.log.with("can't determine"); len(lines) > 0 {
		t.Errorf("the entries are reported at each start: %q", lines)
	}
	env.apply(right, Updating)
	result, err := env.engine.Prune(t.Context(), keepOf(right), PruneOptions{MaxPercent: 1})
	must(t, err)
	if diff := cmp.Diff(PruneResult{}, result); diff != "" {
		t.Errorf("objects that can't exist were deleted or orphaned (-want +got):\n%s", diff)
	}
	env.mu.Lock()
	if len(env.notices) > 0 {
		t.Errorf("notices: %+v", env.notices)
	}
	env.mu.Unlock()
	env.restart()
	if _, total := env.engine.Prunable(); total != 1 {
		t.Errorf("%d entries after a restart, want only the ConfigMap", total)
	}
	if env.get(right[0].ID).GetName() != "settings" {
		t.Error("the object of the new version is gone")
	}
}

// The table decides without the server, so it must agree with it.
func TestTheScopesOfBuiltInKindsAreThoseOfTheServer(t *testing.T) {
	env := newEnvOn(t, controlplane.Shared(t))
	_, lists, err := env.kube.Discovery().ServerGroupsAndResources()
	must(t, err)
	served := map[schema.GroupKind]kinds.Scope{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		must(t, err)
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "patch") {
				continue
			}
			scope := kinds.ClusterScoped
			if r.Namespaced {
				scope = kinds.Namespaced
			}
			served[schema.GroupKind{Group: gv.Group, Kind: r.Kind}] = scope
		}
	}
	builtIn := 0
	for _, gk := range slices.SortedFunc(maps.Keys(served), func(a, b schema.GroupKind) int { return strings.Compare(a.String(), b.String()) }) {
		if kinds.IsCustom(gk.Group) {
			continue
		}
		builtIn++
		if got := kinds.ScopeOf(gk); got != served[gk] {
			t.Errorf("the scope of %s is %d in the table, %d on the server", gk, got, served[gk])
		}
	}
	if builtIn < 50 {
		t.Errorf("the server has only %d built-in kinds", builtIn)
	}
}
