// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// applyState applies the declared objects of a state. All are tried with a
// server-side dry run first, so that a rejected object applies none. It returns the
// state to persist and the orphaned objects.
func (r *Controller) applyState(
	ctx context.Context, obj *v1alpha1.GitSource, rt *runtime, wanted *desired.State, record state.Source,
) (state.Source, []string, error) {
	next := state.Source{Objects: map[string]string{}, UIDs: map[string]string{}, Manifests: map[string]string{}}
	stale, err := r.stale(ctx, obj, rt, wanted, record)
	if err != nil {
		return next, nil, err
	}
	for _, o := range stale {
		if err := r.patch(ctx, obj, o.Manifest.DeepCopy(), o, client.DryRunAll); err != nil {
			return next, nil, err
		}
	}
	for _, o := range wanted.Objects {
		next.Objects[objectKey(o)], next.Manifests[objectKey(o)] = o.Hash, manifestHash(o)
		live, _, err := r.read(ctx, o.Kind, o.Name)
		if err != nil {
			return next, nil, err
		}
		if live != nil {
			next.UIDs[objectKey(o)] = string(live.GetUID())
		}
	}
	for _, o := range stale {
		// The cache may not have the object yet.
		if next.UIDs[objectKey(o)], err = r.apply(ctx, obj, o); err != nil {
			return next, nil, err
		}
		r.runtimes.update(func() { rt.applied[objectKey(o)] = manifestHash(o) })
	}
	orphaned, err := r.prune(ctx, obj, record, &next)
	return next, orphaned, err
}

// maxOrphaned limits the orphaned objects in the status of a source.
const maxOrphaned = 100

func objectKey(o desired.Object) string { return o.Kind + "/" + o.Name }

// manifestHash is the hash of a declared manifest, labels and annotations included.
func manifestHash(o desired.Object) string {
	raw, err := json.Marshal(o.Manifest)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}

// stale returns the declared objects that are missing or differ in the cluster. It
// reads the cache: an unchanged state needs no request.
func (r *Controller) stale(ctx context.Context, obj *v1alpha1.GitSource, rt *runtime, wanted *desired.State, record state.Source) ([]desired.Object, error) {
	var out []desired.Object
	for _, o := range wanted.Objects {
		live, spec, err := r.read(ctx, o.Kind, o.Name)
		if err != nil {
			return nil, err
		}
		if live == nil {
			out = append(out, o)
			continue
		}
		hash, err := desired.SpecHash(spec)
		if err != nil {
			return nil, err
		}
		applied, ok := rt.applied[objectKey(o)]
		if !ok {
			applied = record.Manifests[objectKey(o)] // before a restart
		}
		if hash != o.Hash || applied != manifestHash(o) || live.GetAnnotations()[v1alpha1.AnnotationSource] != obj.Name ||
			!contains(live.GetLabels(), o.Manifest.GetLabels()) || !contains(live.GetAnnotations(), o.Manifest.GetAnnotations()) {
			out = append(out, o)
		}
	}
	return out, nil
}

// contains reports whether live has all of want.
func contains(live, want map[string]string) bool {
	for k, v := range want {
		if got, ok := live[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// checkOwner rejects an object that another existing GitSource declares.
func (r *Controller) checkOwner(ctx context.Context, obj *v1alpha1.GitSource, o desired.Object) error {
	other, _, ok := r.Store.Owner(o.Kind, o.Name)
	if !ok || other == obj.Name || r.Store.Removed(o.Kind, o.Name) {
		return nil
	}
	live, _, err := r.read(ctx, v1alpha1.KindGitSource, other)
	if err != nil || live == nil {
		return err
	}
	return control.NewError("OwnedByOther", true, fmt.Errorf(
		"%s:%d: %s/%s is also declared by GitSource/%s; remove it from one of them", sanitize.Line(o.File), o.Line, o.Kind, o.Name, other))
}

// read returns a declared object from the cache and its spec; nil if it doesn't
// exist.
func (r *Controller) read(ctx context.Context, kind, name string) (client.Object, any, error) {
	var live client.Object
	switch kind {
	case v1alpha1.KindGitSource:
		live = &v1alpha1.GitSource{}
	case v1alpha1.KindClusterRelease:
		live = &v1alpha1.ClusterRelease{}
	case v1alpha1.KindNodeOS:
		live = &v1alpha1.NodeOS{}
	case v1alpha1.KindTrustPolicy:
		live = &v1alpha1.TrustPolicy{}
	default:
		return nil, nil, fmt.Errorf("a source can't declare kind %s", kind)
	}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, live)
	if apierrors.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read %s/%s: %w", kind, name, err)
	}
	_, spec := kindOf(live)
	return live, spec, nil
}

// apply applies one declared object and returns its UID. If another manager added
// fields to the spec, which an apply doesn't remove, it replaces the whole spec.
func (r *Controller) apply(ctx context.Context, obj *v1alpha1.GitSource, o desired.Object) (string, error) {
	live := o.Manifest.DeepCopy()
	if err := r.patch(ctx, obj, live, o); err != nil {
		return "", err
	}
	uid := string(live.GetUID())
	hash, err := unstructuredSpecHash(live)
	if err != nil || hash == o.Hash {
		return uid, err
	}
	return uid, r.replaceSpec(ctx, live, o, fieldOwner(obj))
}

func fieldOwner(obj *v1alpha1.GitSource) client.FieldOwner {
	return client.FieldOwner("lockstep:gitsource/" + obj.Name)
}

// patch is a forced server-side apply of u with the field manager of the source. It
// stores the response in u.
func (r *Controller) patch(ctx context.Context, obj *v1alpha1.GitSource, u *unstructured.Unstructured, o desired.Object, opts ...client.PatchOption) error {
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationSource] = obj.Name
	u.SetAnnotations(annotations)
	raw, err := u.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode %s/%s: %w", o.Kind, o.Name, err)
	}
	opts = append(opts, fieldOwner(obj), client.ForceOwnership)
	if err := r.Client.Patch(ctx, u, client.RawPatch(types.ApplyPatchType, raw), opts...); err != nil {
		return declaredError(o, err)
	}
	return nil
}

// replaceSpec replaces the live spec by the declared one.
func (r *Controller) replaceSpec(ctx context.Context, live *unstructured.Unstructured, o desired.Object, owner client.FieldOwner) error {
	spec, found, err := unstructured.NestedFieldCopy(o.Manifest.Object, "spec")
	if err != nil || !found {
		return fmt.Errorf("%s/%s has no spec", o.Kind, o.Name)
	}
	live.Object["spec"] = spec
	live.SetManagedFields(nil)
	if err := r.Client.Update(ctx, live, owner); err != nil {
		return declaredError(o, err)
	}
	return nil
}

// unstructuredSpecHash is desired.SpecHash of an unstructured object.
func unstructuredSpecHash(u *unstructured.Unstructured) (string, error) {
	raw, err := json.Marshal(u.Object["spec"])
	if err != nil {
		return "", fmt.Errorf("encode the spec of %s: %w", u.GetName(), err)
	}
	var spec any
	switch u.GetKind() {
	case v1alpha1.KindGitSource:
		spec = &v1alpha1.GitSourceSpec{}
	case v1alpha1.KindClusterRelease:
		spec = &v1alpha1.ClusterReleaseSpec{}
	case v1alpha1.KindNodeOS:
		spec = &v1alpha1.NodeOSSpec{}
	case v1alpha1.KindTrustPolicy:
		spec = &v1alpha1.TrustPolicySpec{}
	default:
		return "", fmt.Errorf("a source can't declare kind %s", u.GetKind())
	}
	if err := json.Unmarshal(raw, spec); err != nil {
		return "", fmt.Errorf("spec of %s: %w", u.GetName(), err)
	}
	return desired.SpecHash(spec)
}

// declaredError adds where the rejected object is declared, and a reason.
func declaredError(o desired.Object, err error) error {
	where := fmt.Errorf("%s:%d: %s/%s: %w", sanitize.Line(o.File), o.Line, o.Kind, o.Name, err)
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return control.NewError("InvalidDesiredState", false, where)
	}
	if apierrors.IsForbidden(err) {
		return control.NewError("Forbidden", true, where)
	}
	return control.NewError("ApplyFailed", true, where)
}

// prune deletes objects that were removed from Git, if they have the annotation
// lockstep.dev/prune: enabled and the UID that this source applied. All others are
// orphaned: they are kept, and start nothing new. It returns their names.
func (r *Controller) prune(ctx context.Context, obj *v1alpha1.GitSource, record state.Source, next *state.Source) ([]string, error) {
	var orphaned []string
	for _, key := range slices.Sorted(maps.Keys(record.Objects)) {
		if _, declared := next.Objects[key]; declared {
			continue
		}
		kind, name, _ := strings.Cut(key, "/")
		live, _, err := r.read(ctx, kind, name)
		if err != nil {
			return nil, err
		}
		if live == nil {
			continue
		}
		enabled := obj.Spec.Prune == nil || *obj.Spec.Prune
		ours := string(live.GetUID()) == record.UIDs[key] && live.GetAnnotations()[v1alpha1.AnnotationSource] == obj.Name
		if enabled && ours && live.GetAnnotations()[v1alpha1.AnnotationPrune] == v1alpha1.PruneEnabled {
			uid := live.GetUID()
			err := r.Client.Delete(ctx, live, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("delete %s, which was removed from Git: %w", key, err)
			}
			r.Event(obj, "Normal", "Pruned", key+" was removed from Git and deleted")
			continue
		}
		next.Objects[key], next.UIDs[key] = record.Objects[key], record.UIDs[key]
		next.Removed = append(next.Removed, key)
		orphaned = append(orphaned, key)
	}
	return orphaned[:min(len(orphaned), maxOrphaned)], nil
}
