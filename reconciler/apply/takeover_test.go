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

// foundObject is a ConfigMap that another tool left.
type foundObject struct {
	manager     string
	operation   metav1.ManagedFieldsOperationType
	labels      map[string]string
	annotations map[string]string
	consent     string // the tool that spec.adopt has to name; "" for none
}

// leave writes the ConfigMap settings as the tool did.
func (r *rig) leave(f foundObject) {
	r.t.Helper()
	cm := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: r.ns, Labels: f.labels, Annotations: f.annotations},
		Data:       map[string]string{"a": "0", "stale": "x"},
	}
	maps := r.kube.CoreV1().ConfigMaps(r.ns)
	if f.operation == metav1.ManagedFieldsOperationUpdate {
		_, err := maps.Create(r.t.Context(), cm, metav1.CreateOptions{FieldManager: f.manager})
		must(r.t, err)
		return
	}
	body, err := json.Marshal(cm)
	must(r.t, err)
	_, err = maps.Patch(r.t.Context(), cm.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: f.manager})
	must(r.t, err)
}

func TestObjectsOfOtherToolsNeedConsentAndLoseWhatTheManifestLacks(t *testing.T) {
	const update, apply = metav1.ManagedFieldsOperationUpdate, metav1.ManagedFieldsOperationApply
	for name, found := range map[string]foundObject{
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
			r := newRig(t)
			r.leave(found)
			ms := r.manifests(webSet)[:1]
			if found.consent != "" {
				wantOwned(t, found.consent, func() error {
					_, err := r.engine.Apply(t.Context(), &ms[0], Updating)
					return err
				})
				problems, err := r.engine.DryRun(t.Context(), ms)
				must(t, err)
				if len(problems) != 1 {
					t.Errorf("the dry run: %v, want the same refusal", problems)
				}
				r.engine.Adopt([]string{found.consent})
			}
			ch, err := r.engine.Apply(t.Context(), &ms[0], Updating)
			must(t, err)
			if !ch.Adopted {
				t.Errorf("%+v, want an adopted object", ch)
			}
			o := r.get(ms[0].ID)
			data, _ := o.Object["data"].(map[string]any)
			if diff := cmp.Diff(map[string]any{"a": "1", "b": "2"}, data); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
			for _, e := range o.GetManagedFields() {
				if e.Manager == found.manager {
					t.Errorf("%s holds fields still", e.Manager)
				}
			}
			next := r.manifests(strings.Replace(webSet, `, b: "2"`, "", 1))[:1]
			r.seen(ms)
			_, err = r.engine.Apply(t.Context(), &next[0], Updating)
			must(t, err)
			data, _ = r.get(ms[0].ID).Object["data"].(map[string]any)
			if diff := cmp.Diff([]string{"a"}, slices.Sorted(maps.Keys(data))); diff != "" {
				t.Errorf("keys after the next release (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMarksOfOtherToolsAloneNeedConsent(t *testing.T) {
	for mark, consent := range map[string]string{
		"annotations meta.helm.sh/release-name":      "helm",
		"labels helm.toolkit.fluxcd.io/name":         "flux",
		"labels kustomize.toolkit.fluxcd.io/name":    "flux",
		"annotations argocd.argoproj.io/instance":    "argo",
		"labels argocd.argoproj.io/instance":         "argo",
		"annotations argocd.argoproj.io/tracking-id": "argo",
	} {
		t.Run(mark, func(t *testing.T) {
			r := newRig(t)
			where, key, _ := strings.Cut(mark, " ")
			found := foundObject{manager: "before-first-apply", operation: metav1.ManagedFieldsOperationUpdate}
			if where == "labels" {
				found.labels = map[string]string{key: "web"}
			} else {
				found.annotations = map[string]string{key: "web"}
			}
			r.leave(found)
			ms := r.manifests(webSet)[:1]
			wantOwned(t, consent, func() error {
				_, err := r.engine.Apply(t.Context(), &ms[0], Updating)
				return err
			})
			if a := r.get(ms[0].ID).Object["data"].(map[string]any)["a"]; a != "0" {
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
		t.Errorf("err = %v, want a permanent %s that names %s", err, ReasonOwnedByOther, tool)
	}
}

// The entry of a person is as old as the object. Moved to our manager, it must
// not say that we made the object: then the next prune would delete it.
func TestAnObjectWhoseFirstApplyFailedAfterItsFieldsWereMovedIsStillFound(t *testing.T) {
	for name, restart := range map[string]bool{"TriedAgain": false, "TriedAgainByAnotherProcess": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.leave(foundObject{manager: "kubectl-create", operation: metav1.ManagedFieldsOperationUpdate})
			ms := r.manifests(webSet)[:2]
			bad := r.manifests(strings.Replace(webSet, `b: "2"`, `"not a key": "2"`, 1))[:1]
			must(t, r.engine.Begin(t.Context(), ms, nil))
			var refused *Error
			if _, err := r.engine.Apply(t.Context(), &bad[0], Updating); !errors.As(err, &refused) || refused.Reason() != ReasonResourceInvalid {
				t.Fatalf("err = %v, want %s", err, ReasonResourceInvalid)
			}
			if !slices.ContainsFunc(r.get(ms[0].ID).GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
				return e.Manager == r.engine.Manager() && e.Operation == metav1.ManagedFieldsOperationApply
			}) {
				t.Fatal("the fields weren't moved before the apply")
			}
			if restart {
				r.restart()
			}
			if ch := r.apply(ms, Updating)[0]; !ch.Adopted {
				t.Errorf("%+v, want an adopted object", ch)
			}
			result, err := r.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
			must(t, err)
			if len(result.Orphaned) != 1 || !r.exists(ms[0].ID) {
				t.Errorf("%+v, want the object that was found to stay", result)
			}
		})
	}
}

func TestAnObjectOfACreateOnlyManifestThatExistsIsLeftAsItIs(t *testing.T) {
	r := newRig(t)
	r.leave(foundObject{manager: "kubectl-create", operation: metav1.ManagedFieldsOperationUpdate})
	text := strings.Replace(webSet, "name: settings, namespace: NS", `name: settings, namespace: NS, annotations: {release.openshift.io/create-only: "true"}`, 1)
	ms := r.manifests(text)[:2]
	if !ms[0].CreateOnly {
		t.Fatal("no create-only manifest")
	}
	before := r.get(ms[0].ID)
	untouched := func(when string) {
		t.Helper()
		if diff := cmp.Diff(before.Object, r.get(ms[0].ID).Object); diff != "" {
			t.Errorf("%s: the object (-want +got):\n%s", when, diff)
		}
	}
	if ch := r.apply(ms, Updating)[0]; ch.Action != Unchanged || !ch.Adopted || ch.UID != string(before.GetUID()) {
		t.Errorf("%+v, want the object that was there", ch)
	}
	untouched("the first apply")
	r.restart()
	if ch := r.apply(ms, Updating)[0]; ch.Action != Unchanged || !ch.Adopted {
		t.Errorf("after a restart: %+v, want the object that was there", ch)
	}
	untouched("after a restart")
	result, err := r.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
	must(t, err)
	if len(result.Orphaned) != 1 {
		t.Errorf("%+v, want the object to stay", result)
	}
	untouched("after the release dropped it")
}

// A watch that is down is not trusted to show what others made meanwhile.
func TestACreateOnlyObjectThatTheWatchDoesNotShowIsLeftAsItIs(t *testing.T) {
	r := newRig(t)
	text := strings.Replace(webSet, "name: settings, namespace: NS", `name: settings, namespace: NS, annotations: {release.openshift.io/create-only: "true"}`, 1)
	ms := r.manifests(text)[:1]
	r.apply(ms, Updating)
	r.seen(ms)
	it := r.engine.set.item(ms[0].ID)
	r.engine.set.sub.Close() // Nobody repairs it in between.
	must(t, r.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	r.leave(foundObject{manager: "kubectl-create", operation: metav1.ManagedFieldsOperationUpdate})
	before := r.get(ms[0].ID)
	where, err := r.engine.applier.locate(t.Context(), &ms[0])
	must(t, err)
	gone := live.View{State: live.Absent, AsOf: before.GetResourceVersion()}
	it.busy.Lock()
	ch, err := r.engine.applier.write(t.Context(), &request{it: it, m: &ms[0], target: where, decision: decision{step: stepApply, verdict: Missing}}, gone)
	it.busy.Unlock()
	must(t, err)
	if diff := cmp.Diff(before.Object, r.get(ms[0].ID).Object); diff != "" {
		t.Errorf("the object (-want +got):\n%s", diff)
	}
	if !ch.Adopted || ch.UID != string(before.GetUID()) {
		t.Errorf("%+v, want the object of others, which isn't ours to prune", ch)
	}
}

func TestAnObjectThatOthersMadeInPlaceOfOursIsTheirs(t *testing.T) {
	replace := func(r *rig, id payload.ObjectID, f foundObject) {
		r.engine.set.sub.Close() // Nobody repairs it in between.
		must(t, r.resource(id).Delete(t.Context(), id.Name, metav1.DeleteOptions{}))
		r.leave(f)
		r.shows(r.get(id), id)
	}
	t.Run("AndStaysWhenTheReleaseDropsIt", func(t *testing.T) {
		r := newRig(t)
		ms := r.manifests(webSet)[:2]
		r.apply(ms, Updating)
		replace(r, ms[0].ID, foundObject{manager: "kubectl-create", operation: metav1.ManagedFieldsOperationUpdate})
		ch := r.apply(ms, Reconciling)[0]
		data, _ := r.get(ms[0].ID).Object["data"].(map[string]any)
		if diff := cmp.Diff(map[string]any{"a": "1", "b": "2"}, data); diff != "" || !ch.Adopted {
			t.Errorf("%+v, want it taken over; data (-want +got):\n%s", ch, diff)
		}
		result, err := r.engine.Prune(t.Context(), keepOf(ms[1:]), generous)
		must(t, err)
		if len(result.Orphaned) != 1 || !r.exists(ms[0].ID) {
			t.Errorf("%+v, want the object of others to stay", result)
		}
	})
	t.Run("AndIsTakenOverWithConsentOnly", func(t *testing.T) {
		r := newRig(t)
		ms := r.manifests(webSet)[:2]
		r.apply(ms, Updating)
		replace(r, ms[0].ID, foundObject{manager: "helm", operation: metav1.ManagedFieldsOperationUpdate})
		wantOwned(t, "helm", func() error {
			_, err := r.engine.Apply(t.Context(), &ms[0], Reconciling)
			return err
		})
		if a := r.get(ms[0].ID).Object["data"].(map[string]any)["a"]; a != "0" {
			t.Errorf("data.a is %q: the object was written", a)
		}
		r.engine.Adopt([]string{"helm"})
		ch, err := r.engine.Apply(t.Context(), &ms[0], Reconciling)
		must(t, err)
		if !ch.Adopted {
			t.Errorf("%+v, want an adopted object", ch)
		}
	})
}
