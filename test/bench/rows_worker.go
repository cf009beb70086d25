// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-dev/lockstep/test/env"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// workerRows edits objects as another manager, and waits until a watch reports
// that the whole reconciler repaired them.
func workerRows(ctx context.Context, b *bench) ([]result, error) {
	var took []float64
	err := b.inEnv(ctx, env.Options{Pods: true}, func(w *whole) error {
		if err := w.Control.AddNodes(ctx, 1, nil); err != nil {
			return err
		}
		if err := w.start(ctx, w.GitSource()); err != nil {
			return err
		}
		placed, err := editedObjects()
		if err != nil {
			return err
		}
		r, err := env.ReleaseOf(product, "1.0.0", placed)
		if err != nil {
			return err
		}
		ref, err := w.release(ctx, r)
		if err != nil {
			return err
		}
		if _, err := w.commit(ctx, map[string]string{declared + product + ".yaml": declare(product, "1.0.0", ref)}); err != nil {
			return err
		}
		if err := w.applied(ctx, product, "1.0.0"); err != nil {
			return err
		}
		// Pods have reported to their owners by then.
		if err := pause(ctx, afterwards); err != nil {
			return err
		}
		took, err = editAll(ctx, w, placed)
		return err
	})
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("edit → repaired by the whole reconciler, %d kinds, %d edits", len(workload.Editables()), len(took))
	return []result{
		shown(what+": p50", median(took), "ms", ""),
		shown(what+": p95", quantile(took, 0.95), "ms", "Flux: its interval; CVO: up to 4.7 min").atMost(50),
	}, nil
}

// editedObjects are objects of the twenty kinds, with their namespaces. Quotas
// and limits of one don't apply to another one's pods.
func editedObjects() ([]workload.Placed, error) {
	var out []workload.Placed
	namespaces := map[string]bool{}
	for i := range editsEach {
		for _, e := range workload.Editables() {
			namespace := fmt.Sprintf("edits-%d", i)
			if e.Resource == "limitranges" {
				namespace = fmt.Sprintf("edits-limits-%d", i)
			}
			if !namespaces[namespace] {
				namespaces[namespace] = true
				out = append(out, workload.Placed{Level: 10, Component: "base", Object: workload.Object{Content: map[string]any{
					"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace},
				}, Resource: "namespaces", Foundation: true}})
			}
			o, err := e.Make(i, namespace)
			if err != nil {
				return nil, err
			}
			out = append(out, workload.Placed{Object: o, Level: 20, Component: "kinds"})
		}
	}
	return out, nil
}

// editAll edits each object once, one after the other.
func editAll(ctx context.Context, w *whole, placed []workload.Placed) ([]float64, error) {
	client, err := dynamic.NewForConfig(w.Control.Config)
	if err != nil {
		return nil, fmt.Errorf("client that edits: %w", err)
	}
	patches := map[string][]byte{}
	for _, e := range workload.Editables() {
		if patches[e.Resource], err = e.Patch(); err != nil {
			return nil, err
		}
	}
	var took []float64
	for _, p := range placed {
		if p.Foundation {
			continue
		}
		o := unstructured.Unstructured{Object: p.Content}
		gv, err := schema.ParseGroupVersion(o.GetAPIVersion())
		if err != nil {
			return nil, fmt.Errorf("edited object: %w", err)
		}
		one, err := editOne(ctx, client.Resource(gv.WithResource(p.Resource)).Namespace(o.GetNamespace()), o.GetName(), patches[p.Resource])
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", p.Resource, o.GetName(), err)
		}
		took = append(took, milliseconds(one))
	}
	return took, nil
}

// editOne measures from before the edit is sent until a watch reports the
// object without it.
func editOne(ctx context.Context, r dynamic.ResourceInterface, name string, patch []byte) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var edit any
	if err := json.Unmarshal(patch, &edit); err != nil {
		return 0, fmt.Errorf("edit: %w", err)
	}
	before, err := r.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	watcher, err := r.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: before.GetResourceVersion()})
	if err != nil {
		return 0, err
	}
	defer watcher.Stop()
	began, seen := time.Now(), false
	if _, err := r.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
		return 0, err
	}
	for e := range watcher.ResultChan() {
		o, ok := e.Object.(*unstructured.Unstructured)
		if !ok {
			return 0, fmt.Errorf("the watch said %s", e.Type)
		}
		switch has := holds(edit, o.Object); {
		case has:
			seen = true
		case seen:
			return time.Since(began), nil
		}
	}
	return 0, fmt.Errorf("not repaired in ten seconds; the edit was seen: %t", seen)
}

// holds reports whether an object has everything of an edit.
func holds(edit, have any) bool {
	switch e := edit.(type) {
	case map[string]any:
		h, _ := have.(map[string]any)
		for key, value := range e {
			if !holds(value, h[key]) {
				return false
			}
		}
		return true
	case []any:
		h, _ := have.([]any)
		if len(h) != len(e) {
			return false
		}
		for i := range e {
			if !holds(e[i], h[i]) {
				return false
			}
		}
		return true
	case float64:
		n, isInt := have.(int64)
		return isInt && float64(n) == e || reflect.DeepEqual(edit, have)
	default:
		return reflect.DeepEqual(edit, have)
	}
}
