// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Problem is a manifest that the server would refuse, and why.
type Problem struct {
	ID  payload.ObjectID
	Err error
}

// dryRunner sends manifests as dry runs.
type dryRunner struct {
	set    *set
	client *client
	live   *live.Cache
	// concurrency is the number of concurrent requests.
	concurrency int
}

func (d *dryRunner) run(ctx context.Context, manifests []payload.Manifest) ([]Problem, error) {
	p := providedBy(manifests)
	if err := d.addChangedSchemas(ctx, &p, manifests); err != nil {
		return nil, err
	}
	found := checkScopes(manifests, d.live.Mapping)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(d.concurrency)
	for i := range manifests {
		m := &manifests[i]
		if m.Delete || found[i] != nil {
			continue
		}
		group.Go(func() error {
			if inSync, err := d.set.inSync(ctx, m); inSync || err != nil {
				return err
			}
			err := d.tryOne(ctx, m, p)
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

// provided are the parts of a payload that its other objects may require.
type provided struct {
	payload.ProvidedAPIs
	namespaces map[string]bool
	// schemas are the kinds whose CRD the payload changes: the current schema
	// may refuse an object that the new one accepts.
	schemas map[schema.GroupKind]bool
}

func providedBy(manifests []payload.Manifest) provided {
	p := provided{ProvidedAPIs: payload.Provides(manifests, nil), namespaces: map[string]bool{}, schemas: map[schema.GroupKind]bool{}}
	for i := range manifests {
		if m := &manifests[i]; !m.Delete && m.ID.GroupKind() == kinds.Namespace {
			p.namespaces[m.ID.Name] = true
		}
	}
	return p
}

// kind reports whether the payload provides the manifest's kind, or an
// aggregated API that may serve it.
func (p provided) kind(m *payload.Manifest) bool {
	return p.Kind(m.GVK.GroupKind()) || p.Registered(m.GVK.GroupVersion())
}

// definedKind returns the kind that a CustomResourceDefinition defines.
func definedKind(m *payload.Manifest) schema.GroupKind {
	group, _, _ := unstructured.NestedString(m.Object.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(m.Object.Object, "spec", "names", "kind")
	return schema.GroupKind{Group: group, Kind: kind}
}

// addChangedSchemas adds the kinds whose CRD the payload changes.
func (d *dryRunner) addChangedSchemas(ctx context.Context, p *provided, manifests []payload.Manifest) error {
	for i := range manifests {
		m := &manifests[i]
		if m.Delete || m.ID.GroupKind() != kinds.CustomResourceDefinition {
			continue
		}
		inSync, err := d.set.inSync(ctx, m)
		if err != nil {
			return err
		}
		if !inSync {
			p.schemas[definedKind(m)] = true
		}
	}
	return nil
}

func (d *dryRunner) tryOne(ctx context.Context, m *payload.Manifest, p provided) error {
	mapping, err := d.live.Mapping(m.GVK)
	if err != nil {
		if live.IsNoMatch(err) && p.kind(m) {
			return nil
		}
		return classify(m.ID, err)
	}
	t := target{mapping: mapping, namespace: m.ID.Namespace, name: m.ID.Name}
	if err := d.tryAdopt(ctx, m, t); err != nil {
		return err
	}
	body, err := json.Marshal(d.set.store.Label(m.Object.Object))
	if err != nil {
		return fmt.Errorf("encode the manifest of %s: %w", m.ID, err)
	}
	err = d.client.dryRunApply(ctx, t, body)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = classify(m.ID, err)
	var refused *Error
	if errors.As(err, &refused) && tolerable(refused, m, p) {
		return nil
	}
	return err
}

// tryAdopt returns the error of an initial read. It reads the object, because
// the response to a forced dry run lacks the managers whose fields it took.
func (d *dryRunner) tryAdopt(ctx context.Context, m *payload.Manifest, t target) error {
	if it := d.set.item(m.ID); it != nil {
		if en := d.set.entry(it); en.Applied() {
			return nil
		}
	}
	o, err := d.client.get(ctx, t)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return classify(m.ID, err)
	case o.DeletionTimestamp != nil:
		return nil // The apply will create another object.
	}
	_, err = d.set.mayAdopt(m, o)
	return err
}

// tolerable reports whether a refusal resolves when the payload is applied in
// its order, or doesn't concern the manifest.
func tolerable(refused *Error, m *payload.Manifest, p provided) bool {
	switch refused.Reason() {
	case ReasonNamespaceMissing:
		return p.namespaces[m.ID.Namespace]
	case ReasonTypeMissing:
		return p.kind(m)
	case ReasonResourceInvalid:
		return p.schemas[m.GVK.GroupKind()]
	case ReasonFieldImmutable:
		return m.Replace || m.ID.IsJob()
	case ReasonWebhookFailed:
		return true // The webhook doesn't support dry runs, or is part of the payload.
	default:
		return false
	}
}

// CheckScope returns the manifests that no request could ever apply, because they
// have a namespace and their kind is cluster-scoped, or the reverse. It sends no
// request except to discover kinds, and ignores those that the server doesn't
// serve yet.
func (e *Engine) CheckScope(manifests []payload.Manifest) []Problem {
	var out []Problem
	for _, p := range checkScopes(manifests, e.set.live.Mapping) {
		if p != nil {
			out = append(out, *p)
		}
	}
	return out
}

// mapper discovers the resource of a kind.
type mapper func(schema.GroupVersionKind) (*meta.RESTMapping, error)

// checkScopes returns the problem of each manifest, nil for most. The scopes of
// kinds that the manifests define are those of their CRDs, which may differ from
// the ones in the cluster.
func checkScopes(manifests []payload.Manifest, mapping mapper) []*Problem {
	scopes := payload.ScopesOf(manifests)
	discovered := map[schema.GroupVersionKind]kinds.Scope{}
	out := make([]*Problem, len(manifests))
	for i := range manifests {
		m := &manifests[i]
		if m.Delete {
			continue // It is absent, as the manifest requires.
		}
		scope := scopes.Of(m.GVK.GroupKind())
		if scope == kinds.UnknownScope {
			known, ok := discovered[m.GVK]
			if !ok {
				known = discoveredScope(mapping(m.GVK))
				discovered[m.GVK] = known
			}
			scope = known
		}
		if err := payload.CheckScope(m.ID, scope); err != nil {
			out[i] = &Problem{ID: m.ID, Err: permanent(m.ID, ReasonResourceInvalid, "%s%s", err, placeOf(m))}
		}
	}
	return out
}

// placeOf returns " (file:line)", or "" for manifests without a file.
func placeOf(m *payload.Manifest) string {
	if m.File == "" {
		return ""
	}
	return fmt.Sprintf(" (%s:%d)", m.File, m.Line)
}

// discoveredScope returns the scope of a mapping; it is unknown after an error.
func discoveredScope(mapping *meta.RESTMapping, err error) kinds.Scope {
	switch {
	case err != nil || mapping == nil || mapping.Scope == nil:
		return kinds.UnknownScope
	case mapping.Scope.Name() == meta.RESTScopeNameNamespace:
		return kinds.Namespaced
	default:
		return kinds.ClusterScoped
	}
}
