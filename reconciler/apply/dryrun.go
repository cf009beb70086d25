// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Problem is what the server would refuse.
type Problem struct {
	ID  payload.ObjectID
	Err error
}

// DryRun asks the server whether it would accept the manifests, and returns
// what it wouldn't, in the order of the manifests. Nothing is written. A
// manifest that is unchanged and level isn't asked for. A kind whose
// definition is among the manifests, and a namespace that is, may be missing
// still.
func (e *Engine) DryRun(ctx context.Context, manifests []payload.Manifest) ([]Problem, error) {
	coming := foreseen(manifests)
	if err := e.addChanging(ctx, &coming, manifests); err != nil {
		return nil, err
	}
	found := make([]*Problem, len(manifests))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(e.cfg.Shared.budget.size())
	for i := range manifests {
		m := &manifests[i]
		if m.Delete {
			continue
		}
		group.Go(func() error {
			if level, err := e.isLevel(ctx, m); level || err != nil {
				return err
			}
			err := e.tryOne(ctx, m, coming)
			var refused *Error
			switch {
			case errors.As(err, &refused):
				found[i] = &Problem{ID: m.ID, Err: err}
				return nil
			default:
				return err
			}
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var out []Problem
	for _, p := range found {
		if p != nil {
			out = append(out, *p)
		}
	}
	return out, nil
}

// isLevel reports whether applying the manifest would cost no request.
func (e *Engine) isLevel(ctx context.Context, m *payload.Manifest) (bool, error) {
	it := e.item(m.ID)
	if it == nil {
		return false, nil
	}
	view, err := e.view(ctx, m.ID)
	return err == nil && e.decide(it, m, view).step == stepNone, err
}

// future is what a payload brings that others of its objects need.
type future struct {
	payload.ProvidedAPIs
	namespaces map[string]bool
	// schemas are the kinds whose definition is another than the cluster's:
	// that the cluster's refuses an object says nothing.
	schemas map[schema.GroupKind]bool
}

func foreseen(manifests []payload.Manifest) future {
	f := future{ProvidedAPIs: payload.Provides(manifests, nil), namespaces: map[string]bool{}, schemas: map[schema.GroupKind]bool{}}
	for i := range manifests {
		if m := &manifests[i]; !m.Delete && m.ID.GroupKind() == kinds.Namespace {
			f.namespaces[m.ID.Name] = true
		}
	}
	return f
}

// kind reports whether the payload brings the manifest's kind, or a server that
// may serve it.
func (f future) kind(m *payload.Manifest) bool {
	return f.Kind(m.GVK.GroupKind()) || f.Registered(m.GVK.GroupVersion())
}

func definition(m *payload.Manifest) bool {
	return m.ID.GroupKind() == kinds.CustomResourceDefinition
}

// definedBy returns the kind that a CustomResourceDefinition defines.
func definedBy(m *payload.Manifest) schema.GroupKind {
	group, _, _ := unstructured.NestedString(m.Object.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(m.Object.Object, "spec", "names", "kind")
	return schema.GroupKind{Group: group, Kind: kind}
}

// addChanging notes the kinds whose definition the payload changes.
func (e *Engine) addChanging(ctx context.Context, f *future, manifests []payload.Manifest) error {
	for i := range manifests {
		m := &manifests[i]
		if m.Delete || !definition(m) {
			continue
		}
		level, err := e.isLevel(ctx, m)
		if err != nil {
			return err
		}
		if !level {
			f.schemas[definedBy(m)] = true
		}
	}
	return nil
}

func (e *Engine) tryOne(ctx context.Context, m *payload.Manifest, coming future) error {
	t, err := e.tryLocate(m)
	if err != nil {
		if live.IsNoMatch(err) && coming.kind(m) {
			return nil
		}
		return classify(m.ID, err)
	}
	if err := e.tryAdopt(ctx, m, t); err != nil {
		return err
	}
	force := true
	body, err := json.Marshal(member(m.Object.Object, e.store.id))
	if err != nil {
		return fmt.Errorf("%s: encoding: %w", m.ID, err)
	}
	_, _, err = e.wire.patch(ctx, t, types.ApplyPatchType, body, metav1.PatchOptions{
		FieldManager: e.manager, Force: &force, DryRun: []string{metav1.DryRunAll},
	})
	e.cfg.Metrics.request("dry-run", outcome(err))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	err = classify(m.ID, err)
	var refused *Error
	if errors.As(err, &refused) && tolerable(refused, m, coming) {
		return nil
	}
	return err
}

// tryAdopt refuses what a first apply would refuse. It reads the object: the
// answer of a dry run that forces doesn't show those whose every field it took.
func (e *Engine) tryAdopt(ctx context.Context, m *payload.Manifest, t target) error {
	if it := e.item(m.ID); it != nil {
		e.mu.RLock()
		applied := it.entry.applied()
		e.mu.RUnlock()
		if applied {
			return nil
		}
	}
	o, err := e.read(ctx, t)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return classify(m.ID, err)
	case o.DeletionTimestamp != nil:
		return nil // It will be another object by then.
	}
	return e.mayAdopt(m.ID, o, adoptFrom(m))
}

func (e *Engine) tryLocate(m *payload.Manifest) (target, error) {
	mapping, err := e.cfg.Live.Mapping(m.GVK)
	if err != nil {
		return target{}, err
	}
	return target{mapping: mapping, namespace: m.ID.Namespace, name: m.ID.Name}, nil
}

// tolerable reports whether a refusal goes away when the payload is applied
// in its order, or says nothing of the manifest.
func tolerable(refused *Error, m *payload.Manifest, coming future) bool {
	switch refused.Reason() {
	case ReasonNamespaceMissing:
		return coming.namespaces[m.ID.Namespace]
	case ReasonTypeMissing:
		return coming.kind(m)
	case ReasonResourceInvalid:
		return coming.schemas[m.GVK.GroupKind()]
	case ReasonFieldImmutable:
		return m.Replace || m.ID.IsJob()
	case ReasonWebhookFailed:
		return true // A webhook that forbids dry runs, or that the payload brings.
	default:
		return false
	}
}

// Forget ends the set without deleting anything of it: the inventory goes, the
// objects stay.
func (e *Engine) Forget(ctx context.Context) error {
	e.mu.Lock()
	items := make([]*item, 0, len(e.items))
	for _, it := range e.items {
		items = append(items, it)
	}
	e.mu.Unlock()
	for _, it := range slices.Clone(items) {
		e.forget(it)
	}
	return e.store.destroy(ctx)
}
