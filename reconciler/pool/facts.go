// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// gather collects the facts about a NodeOS.
func (r *Controller) gather(ctx context.Context, obj *v1alpha1.NodeOS) Facts {
	f := Facts{NotFromSource: r.sources.NotFromSource(obj, v1alpha1.KindNodeOS, obj.Spec)}
	_, _, f.DeclaredBySource = r.Store.Owner(v1alpha1.KindNodeOS, obj.Name)
	release, manifest, observed := r.declaringRelease(obj)
	if f.DeclaredBySource && manifest == nil && observed == "" {
		f.Removed = r.sources.RemovedFromGit(v1alpha1.KindNodeOS, obj.Name)
	}
	f.Release, f.ObservedHash = release, observed
	if f.NotFromSource.Reason != "" && !f.DeclaredBySource {
		f.Loading = r.releases.Loading()
		var err error
		if f.Hash, err = desired.SpecHash(obj.Spec); err != nil {
			f.Invalid = status.HeldBy{Reason: "InvalidSpec", Message: err.Error()}
		} else if manifest != nil {
			if f.ManifestHash, err = r.manifestHash(ctx, manifest); err != nil {
				f.Invalid = status.HeldBy{Reason: "InvalidManifest", Message: err.Error()}
			}
		}
	}
	return f
}

// planned returns the object to plan: a copy with the hold of the release that
// declares it. It is read last, after all waits: a pause applies immediately.
func (r *Controller) planned(ctx context.Context, obj *v1alpha1.NodeOS, f Facts) (*v1alpha1.NodeOS, error) {
	if f.DeclaredBySource || f.Release == "" {
		return obj, nil
	}
	var declaring v1alpha1.ClusterRelease
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: f.Release}, &declaring)
	if apierrors.IsNotFound(err) {
		return obj, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ClusterRelease/%s, which contains NodeOS/%s: %w", f.Release, obj.Name, err)
	}
	return withReleaseHold(obj, &declaring), nil
}

// declaringRelease returns the release whose payload declares a NodeOS, its
// manifest (nil if no loaded payload has it) and the last observed spec hash ("" if
// none).
func (r *Controller) declaringRelease(obj *v1alpha1.NodeOS) (release string, manifest *payload.Manifest, observed string) {
	release, observed, _ = r.Store.PoolOwner(obj.Name)
	manifest, loaded, ok := r.releases.Manifest(payload.ObjectID{
		Group: v1alpha1.Group, Kind: v1alpha1.KindNodeOS, Namespace: v1alpha1.Namespace, Name: obj.Name,
	}, release)
	if !ok {
		return release, nil, observed
	}
	return loaded, manifest, observed
}

// maxSpecs limits the cached spec hashes.
const maxSpecs = 100

// manifestHash returns the spec hash of a NodeOS manifest, defaults included.
func (r *Controller) manifestHash(ctx context.Context, m *payload.Manifest) (string, error) {
	key := fmt.Sprintf("%x", m.Hash)
	r.mu.Lock()
	hash, ok := r.specs[key]
	r.mu.Unlock()
	if ok {
		return hash, nil
	}
	files := sources.NewTreeBuilder(sources.Limits{})
	if err := files.Add("nodeos.yaml", m.JSON, false); err != nil {
		return "", err
	}
	tree, err := files.Build()
	if err != nil {
		return "", err
	}
	state, err := r.decoder.Decode(ctx, desired.Request{FS: tree, Path: "nodeos.yaml"})
	if err != nil {
		return "", err
	}
	hash, ok = state.Hash(v1alpha1.KindNodeOS, m.ID.Name)
	if !ok {
		return "", fmt.Errorf("%s: the manifest declares no NodeOS", m.ID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.specs) > maxSpecs {
		clear(r.specs)
	}
	r.specs[key] = hash
	return hash, nil
}

// originOf returns the source that declares a NodeOS, or the release that contains
// it.
func (r *Controller) originOf(obj *v1alpha1.NodeOS, release string) control.Origin {
	if from, _, ok := r.sources.Origin(v1alpha1.KindNodeOS, obj.Name); ok {
		return from
	}
	if release == "" {
		return control.Origin{}
	}
	from, _, _ := r.sources.Origin(v1alpha1.KindClusterRelease, release)
	return from
}
