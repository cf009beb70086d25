// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// existingObject describes a ConfigMap of another tool.
type existingObject struct {
	manager     string
	operation   metav1.ManagedFieldsOperationType
	labels      map[string]string
	annotations map[string]string
	adopt       string // the tool that spec.adopt requires; "" for none
}

// createFound writes the ConfigMap settings as the tool does.
func (env *testEnv) createFound(f existingObject) {
	env.t.Helper()
	cm := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: env.ns, Labels: f.labels, Annotations: f.annotations},
		Data:       map[string]string{"a": "0", "stale": "x"},
	}
	maps := env.kube.CoreV1().ConfigMaps(env.ns)
	if f.operation == metav1.ManagedFieldsOperationUpdate {
		_, err := maps.Create(env.t.Context(), cm, metav1.CreateOptions{FieldManager: f.manager})
		must(env.t, err)
		return
	}
	body, err := json.Marshal(cm)
	must(env.t, err)
	_, err = maps.Patch(env.t.Context(), cm.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: f.manager})
	must(env.t, err)
}

func TestObjectsOfOtherToolsRequireAdoptAndLoseOtherFields(t *testing.T) {
	const update, apply = metav1.ManagedFieldsOperationUpdate, metav1.ManagedFieldsOperationApply
	for name, found := range map[string]existingObject{
		"Helm":                        {"helm", update, nil, map[string]string{"meta.helm.sh/release-name": "web"}, "helm"},
		"Helm 4":                      {"helm", apply, nil, map[string]string{"meta.helm.sh/release-name": "web"}, "helm"},
		"Flux's kustomize-controller": {"kustomize-controller", apply, map[string]string{"kustomize.toolkit.fluxcd.io/name": "web"}, nil, "flux"},
		"Flux's helm-controller":      {"helm-controller", update, map[string]string{"helm.toolkit.fluxcd.io/name": "web"}, nil, "flux"},
		"Argo, server-side":           {"argocd-controller", apply, nil, map[string]string{"argocd.argoproj.io/tracking-id": "web:/ConfigMap:x/settings"}, "argo"},
		"Argo, client-side":           {"argocd-application-controller", update, nil, map[string]string{"argocd.argoproj.io/tracking-id": "web:/ConfigMap:x/settings"}, "argo"},
		"CVO":                         {"cluster-version-operator", update, nil, nil, ""},
		"kubectl apply":               {"kubectl-client-side-apply", update, nil, nil, ""},
		"kubectl apply --server-side": {"kubectl", apply, nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			env := newEnv(t)
			env.createFound(found)
			ms := env.manifests(webSet)[:1]
			if found.adopt != "" {
				wantOwned(t, found.adopt, func() error {
					_, err := env.engine.Apply(t.Context(), &ms[0], Updating)
					return err
				})
				problems, err := env.engine.DryRun(t.Context(), ms)
				must(t, err)
				if len(problems) != 1 {
					t.Errorf("the dry run returned %v, want one refusal", problems)
				}
				env.engine.Adopt([]string{found.adopt})
			}
			ch, err := env.engine.Apply(t.Context(), &ms[0], Updating)
			must(t, err)
			if !ch.Adopted {
				t.Errorf("%+v, want an adopted object", ch)
			}
			o := env.get(ms[0].ID)
			data, _ := o.Object["data"].(map[string]any)
			if diff := cmp.Diff(map[string]any{"a": "1", "b": "2"}, data); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
			for _, e := range o.GetManagedFields() {
				if e.Manager == found.manager {
					t.Errorf("%s still owns fields", e.Manager)
				}
			}
			next := env.manifests(strings.Replace(webSet, `, b: "2"`, "", 1))[:1]
			env.awaitEvents(ms)
			_, err = env.engine.Apply(t.Context(), &next[0], Updating)
			must(t, err)
			data, _ = env.get(ms[0].ID).Object["data"].(map[string]any)
			if diff := cmp.Diff([]string{"a"}, slices.Sorted(maps.Keys(data))); diff != "" {
				t.Errorf("keys after the next release (-want +got):\n%s", diff)
			}
		})
	}
}

func TestObjectsMarkedByOtherToolsRequireAdopt(t *testing.T) {
	for mark, tool := range map[string]string{
		"annotations meta.helm.sh/release-name":      "helm",
		"labels helm.toolkit.fluxcd.io/name":         "flux",
		"labels kustomize.toolkit.fluxcd.io/name":    "flux",
		"annotations argocd.argoproj.io/instance":    "argo",
		"labels argocd.argoproj.io/instance":         "argo",
		"annotations argocd.argoproj.io/tracking-id": "argo",
	} {
		t.Run(mark, func(t *testing.T) {
			env := newEnv(t)
			where, key, _ := strings.Cut(mark, " ")
			found := existingObject{manager: "before-first-apply", operation: metav1.ManagedFieldsOperationUpdate}
			if where == "labels" {
				found.labels = map[string]string{key: "web"}
			} else {
				found.annotations = map[string]string{key: "web"}
			}
			env.createFound(found)
			ms := env.manifests(webSet)[:1]
			wantOwned(t, tool, func() error {
				_, err := env.engine.Apply(t.Context(), &ms[0], Updating)
				return err
			})
			if a := env.get(ms[0].ID).Object["data"].(map[string]any)["a"]; a != "0" {
				t.Errorf("data.a is %q: the object was written", a)
			}
		})
	}
}

func wantOwned(t *testing.T, tool string, do func() error) {
	t.Helper()
	err := do()
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonOwnedByOther || refused.Retriable() || !strings.Contains(err.Error(), `"`+tool+`"`) {
		t.Errorf("err = %v, want a permanent %s with %s", err, ReasonOwnedByOther, tool)
	}
}

// The entry of kubectl is as old as the object. Moved to the set's manager, it must
// not mark the object as created by the set, or the next prune would delete it.
func TestObjectStaysAdoptedWhenItsFirstApplyFailsAfterTheTakeover(t *testing.T) {
	for name, restart := range map[string]bool{"SameProcess": false, "NewProcess": true} {
		t.Run(name, func(t *testing.T) {
			env := newEnv(t)
			env.createFound(existingObject{manager: "kubectl-create", operation: metav1.ManagedFieldsOperationUpdate})
			ms := env.manifests(webSet)[:2]
			bad := env.manifests(strings.Replace(webSet, `b: "2"`, `"not a key": "2"`, 1))[:1]
			must(t, env.engine.Begin(t.Context(), ms, nil))
			var refused *Error
			if _, err := env.engine.Apply(t.Context(), &bad[0], Updating); !errors.As(err, &refused) || refused.Reason() != ReasonResourceInvalid {
				t.Fatalf("err = %v, want %s", err, ReasonResourceInvalid)
			}
			if !slices.ContainsFunc(env.get(ms[0].ID).GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
				return e.Manager == env.engine.Manager() && e.Operation == metav1.ManagedFieldsOperationApply
			}) {
				t.Fatal("the fields weren't taken over before the apply")
			}
			if restart {
				env.restart()
			}
			if ch := env.apply(ms, Updating)[0]; !ch.Adopted {
				t.Errorf("%+v, want an adopted object", ch)
			}
			result, err := env.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
			must(t, err)
			if len(result.Orphaned) != 1 || !env.exists(ms[0].ID) {
				t.Errorf("%+v, want the pre-existing object kept", result)
			}
		})
	}
}

func TestPreexistingCreateOnlyObjectIsUnchanged(t *testing.T) {
	env := newEnv(t)
	env.createFound(existingObject{manager: "kubectl-create", operation: metav1.ManagedFieldsOperationUpdate})
	text := strings.Replace(webSet, "name: settings, namespace: NS", `name: settings, namespace: NS, annotations: {release.openshift.io/create-only: "true"}`, 1)
	ms := env.manifests(text)[:2]
	if !ms[0].CreateOnly {
		t.Fatal("no create-only manifest")
	}
	before := env.get(ms[0].ID)
	wantUnchanged := func(when string) {
		t.Helper()
		if diff := cmp.Diff(before.Object, env.get(ms[0].ID).Object); diff != "" {
			t.Errorf("%s: the object (-want +got):\n%s", when, diff)
		}
	}
	if ch := env.apply(ms, Updating)[0]; ch.Action != Unchanged || !ch.Adopted || ch.UID != string(before.GetUID()) {
		t.Errorf("%+v, want the pre-existing object", ch)
	}
	wantUnchanged("the first apply")
	env.restart()
	if ch := env.apply(ms, Updating)[0]; ch.Action != Unchanged || !ch.Adopted {
		t.Errorf("after a restart: %+v, want the pre-existing object", ch)
	}
	wantUnchanged("after a restart")
	result, err := env.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
	must(t, err)
	if len(result.Orphaned) != 1 {
		t.Errorf("%+v, want the object kept", result)
	}
	wantUnchanged("after it left the release")
}

// A late watch doesn't show an object that others created meanwhile.
func TestPreexistingCreateOnlyObjectMissingFromTheWatchIsUnchanged(t *testing.T) {
	env := newEnv(t)
	text := strings.Replace(webSet, "name: settings, namespace: NS", `name: settings, namespace: NS, annotations: {release.openshift.io/create-only: "true"}`, 1)
	ms := env.manifests(text)[:1]
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	it := env.engine.set.item(ms[0].ID)
	env.engine.set.sub.Close() // No repair in between.
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	env.createFound(existingObject{manager: "kubectl-create", operation: metav1.ManagedFieldsOperationUpdate})
	before := env.get(ms[0].ID)
	where, err := env.engine.applier.locate(t.Context(), &ms[0])
	must(t, err)
	gone := live.View{State: live.Absent, AsOf: before.GetResourceVersion()}
	it.busy.Lock()
	ch, err := env.engine.applier.write(t.Context(), &request{it: it, m: &ms[0], target: where, decision: decision{step: stepApply, verdict: Missing}}, gone)
	it.busy.Unlock()
	must(t, err)
	if diff := cmp.Diff(before.Object, env.get(ms[0].ID).Object); diff != "" {
		t.Errorf("the object (-want +got):\n%s", diff)
	}
	if !ch.Adopted || ch.UID != string(before.GetUID()) {
		t.Errorf("%+v, want the pre-existing object, which is never pruned", ch)
	}
}

func TestObjectReplacedByOthersIsPreexisting(t *testing.T) {
	replace := func(env *testEnv, id payload.ObjectID, f existingObject) {
		env.engine.set.sub.Close() // No repair in between.
		must(t, env.resource(id).Delete(t.Context(), id.Name, metav1.DeleteOptions{}))
		env.createFound(f)
		env.awaitVersion(env.get(id), id)
	}
	t.Run("IsKeptWhenItLeavesTheRelease", func(t *testing.T) {
		env := newEnv(t)
		ms := env.manifests(webSet)[:2]
		env.apply(ms, Updating)
		replace(env, ms[0].ID, existingObject{manager: "kubectl-create", operation: metav1.ManagedFieldsOperationUpdate})
		ch := env.apply(ms, Reconciling)[0]
		data, _ := env.get(ms[0].ID).Object["data"].(map[string]any)
		if diff := cmp.Diff(map[string]any{"a": "1", "b": "2"}, data); diff != "" || !ch.Adopted {
			t.Errorf("%+v, want it taken over; data (-want +got):\n%s", ch, diff)
		}
		result, err := env.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
		must(t, err)
		if len(result.Orphaned) != 1 || !env.exists(ms[0].ID) {
			t.Errorf("%+v, want the pre-existing object kept", result)
		}
	})
	t.Run("RequiresAdopt", func(t *testing.T) {
		env := newEnv(t)
		ms := env.manifests(webSet)[:2]
		env.apply(ms, Updating)
		replace(env, ms[0].ID, existingObject{manager: "helm", operation: metav1.ManagedFieldsOperationUpdate})
		wantOwned(t, "helm", func() error {
			_, err := env.engine.Apply(t.Context(), &ms[0], Reconciling)
			return err
		})
		if a := env.get(ms[0].ID).Object["data"].(map[string]any)["a"]; a != "0" {
			t.Errorf("data.a is %q: the object was written", a)
		}
		env.engine.Adopt([]string{"helm"})
		ch, err := env.engine.Apply(t.Context(), &ms[0], Reconciling)
		must(t, err)
		if !ch.Adopted {
			t.Errorf("%+v, want an adopted object", ch)
		}
	})
}

func TestFieldsOfOtherToolsAreReportedOnceAtAdoption(t *testing.T) {
	env := newEnv(t)
	env.createFound(existingObject{manager: "installer", operation: metav1.ManagedFieldsOperationUpdate, labels: map[string]string{"team": "x"}})
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	for _, detail := range []string{"took .data.a from installer", "kept .data.stale, .metadata.labels.team of installer"} {
		if n := env.noticesOf(ms[0].ID, ReasonAdoptedFields, detail); n != 1 {
			t.Errorf("%d notices of %q, want 1", n, detail)
		}
	}
	env.awaitEvents(ms)
	env.apply(env.manifests(strings.Replace(webSet, `a: "1"`, `a: "2"`, 1))[:1], Updating)
	if n := env.noticesOf(ms[0].ID, ReasonAdoptedFields, ""); n != 1 {
		t.Errorf("%d notices after the next release, want 1", n)
	}
}
