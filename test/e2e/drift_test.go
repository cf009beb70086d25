// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/test/env"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// drifting is one object of one of the twenty kinds.
type drifting struct {
	workload.Editable
	wanted map[string]any
	live   dynamic.ResourceInterface
	name   string
}

// Objects of each kind are created twice, in separate namespaces: one is
// edited, the other deleted.
const (
	editedOne = iota
	deletedOne
	driftingEach
)

// driftRelease returns a release of the twenty kinds and its objects.
func driftRelease(t *testing.T, w *env.Env) (env.Release, [][]drifting) {
	t.Helper()
	client, err := dynamic.NewForConfig(w.Control.Config)
	must(t, err)
	base := env.Component{Name: "base", RunLevel: 10, Files: map[string]string{}}
	kinds := env.Component{Name: "kinds", RunLevel: 20, Files: map[string]string{}}
	var all [][]drifting
	for _, e := range workload.Editables() {
		var each []drifting
		for i := range driftingEach {
			namespace := fmt.Sprintf("drift-%d", i)
			if e.Resource == "limitranges" {
				namespace = fmt.Sprintf("drift-limits-%d", i) // pods without limits are rejected there
			}
			base.Files[namespace+".yaml"] = "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + namespace + "}\n"
			o, err := e.Make(i, namespace)
			must(t, err)
			raw, err := yaml.Marshal(o.Content)
			must(t, err)
			kinds.Files[fmt.Sprintf("%s-%d.yaml", e.Resource, i)] = string(raw)
			u := unstructured.Unstructured{Object: o.Content}
			gv, err := schema.ParseGroupVersion(u.GetAPIVersion())
			must(t, err)
			each = append(each, drifting{
				Editable: e, wanted: o.Content, live: client.Resource(gv.WithResource(e.Resource)).Namespace(u.GetNamespace()), name: u.GetName(),
			})
		}
		all = append(all, each)
	}
	return env.Release{Product: platform, Version: first, Components: []env.Component{base, kinds}}, all
}

// TestDriftOfTwentyKindsIsRepaired edits an object of each kind and deletes
// another, as a user with kubectl does.
func TestDriftOfTwentyKindsIsRepaired(t *testing.T) { //nolint:tparallel // the cases share one environment and run in order
	t.Parallel()
	w := newEnvWith(t, env.Options{Pods: true})
	must(t, w.Control.AddNodes(t.Context(), 1, nil))
	r, all := driftRelease(t, w)
	ref := release(t, w, r)
	push(t, w, "twenty kinds", map[string]string{platformFile: declare(platform, first, ref)})
	start(t, w)
	waitApplied(t, w, platform, first)

	kinds := map[string]bool{}
	for _, each := range all {
		kinds[each[editedOne].Resource] = true
		t.Run(each[editedOne].Resource, func(t *testing.T) {
			each[editedOne].isRepaired(t)
			each[deletedOne].isMadeAgain(t)
		})
	}
	if len(kinds) != 20 {
		t.Errorf("%d kinds, want 20", len(kinds))
	}
	waitApplied(t, w, platform, first)
}

// isRepaired edits a declared field and waits until it is as declared again.
func (d drifting) isRepaired(t *testing.T) {
	t.Helper()
	patch, err := d.Patch()
	must(t, err)
	before, err := d.live.Get(t.Context(), d.name, metav1.GetOptions{})
	must(t, err)
	must(t, d.asDeclared(before))
	edited, err := d.live.Patch(t.Context(), d.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-edit"})
	must(t, err)
	if d.asDeclared(edited) == nil {
		t.Fatalf("the edit %s changed no declared field", patch)
	}
	must(t, env.Wait(t.Context(), 20*time.Second, func(ctx context.Context) error {
		now, err := d.live.Get(ctx, d.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.GetUID() != before.GetUID() {
			t.Fatalf("%s was recreated instead of repaired", d.name)
		}
		return d.asDeclared(now)
	}))
}

// isRecreated deletes the object and waits until it is recreated.
func (d drifting) isMadeAgain(t *testing.T) {
	t.Helper()
	before, err := d.live.Get(t.Context(), d.name, metav1.GetOptions{})
	must(t, err)
	background := metav1.DeletePropagationBackground
	must(t, d.live.Delete(t.Context(), d.name, metav1.DeleteOptions{PropagationPolicy: &background}))
	must(t, env.Wait(t.Context(), 40*time.Second, func(ctx context.Context) error {
		now, err := d.live.Get(ctx, d.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.GetUID() == before.GetUID() {
			return errors.New("the deleted object is still there")
		}
		return d.asDeclared(now)
	}))
}

// asDeclared returns an error unless the object has everything that its
// manifest declares. Additions by others are ignored.
func (d drifting) asDeclared(o *unstructured.Unstructured) error {
	if where := missing(d.wanted, o.Object); where != "" {
		return fmt.Errorf("%s %s isn't as declared at %s", d.Resource, d.name, where)
	}
	return nil
}

// missing returns what have lacks of want; "" for nothing.
func missing(want, have any) string {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return fmt.Sprintf(": %T", have)
		}
		for key, value := range w {
			if where := missing(value, h[key]); where != "" {
				return "." + key + where
			}
		}
		return ""
	case []any:
		h, ok := have.([]any)
		if !ok || len(h) != len(w) {
			return fmt.Sprintf(": %v", have)
		}
		for i := range w {
			if where := missing(w[i], h[i]); where != "" {
				return fmt.Sprintf("[%d]%s", i, where)
			}
		}
		return ""
	default:
		if reflect.DeepEqual(want, have) {
			return ""
		}
		return fmt.Sprintf(": %v, want %v", have, want)
	}
}
