// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// NotFromSource enforces trust boundary T3: it returns why the object must not be
// acted upon, and nothing if its spec is the accepted one or the one being applied.
// The controller restores a differing spec.
func (r *Controller) NotFromSource(obj client.Object, kind string, spec any) status.HeldBy {
	live, err := desired.SpecHash(spec)
	if err != nil {
		return status.HeldBy{Reason: status.ReasonNotFromSource, Message: err.Error()}
	}
	source, want, ok := r.Store.Owner(kind, obj.GetName())
	if ok && live == want || r.runtimes.isPending(kind, obj.GetName(), live) {
		return status.HeldBy{}
	}
	if ok && r.Store.Removed(kind, obj.GetName()) {
		return status.HeldBy{Reason: status.ReasonNotFromSource, Message: "spec differs from the one last declared in Git; " + removedNext(kind, obj.GetName())}
	}
	message := "not declared in an accepted revision of a GitSource; declare it in Git"
	if ok {
		message = fmt.Sprintf("spec differs from the one declared by GitSource/%s; being restored; change it in Git", source)
	}
	return status.HeldBy{Reason: status.ReasonNotFromSource, Message: message, Transient: ok}
}

// ValidateSpec returns why a spec is invalid for this version of the reconciler; the
// version that accepted it, or a CRD of another version, may have permitted it.
func (r *Controller) ValidateSpec(ctx context.Context, kind, name string, spec any) error {
	return r.decoder.ValidateSpec(ctx, kind, name, spec)
}

// RemovedFromGit returns why an object whose declaration left Git starts nothing
// new, and nothing for any other object.
func (r *Controller) RemovedFromGit(kind, name string) status.HeldBy {
	if !r.Store.Removed(kind, name) || r.runtimes.declaresPending(kind, name) {
		return status.HeldBy{}
	}
	return status.HeldBy{Reason: status.ReasonRemovedFromGit, Message: "removed from Git and kept; starts nothing new; " + removedNext(kind, name)}
}

// removedNext is what to do with an object that left Git.
func removedNext(kind, name string) string {
	return fmt.Sprintf("declare it again, or: kubectl delete %s %s -n %s", strings.ToLower(kind), name, v1alpha1.Namespace)
}

// Applying reports whether a commit is being applied: objects that it declares may
// not exist yet.
func (r *Controller) Applying() bool {
	r.runtimes.mu.Lock()
	defer r.runtimes.mu.Unlock()
	for _, rt := range r.runtimes.byName {
		if rt.pending != nil {
			return true
		}
	}
	return false
}

// declaresPending reports whether a revision that is being applied declares the
// object.
func (s *runtimes) declaresPending(kind, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rt := range s.byName {
		if rt.pending == nil {
			continue
		}
		if _, ok := rt.pending.Hash(kind, name); ok {
			return true
		}
	}
	return false
}

// NotFromParent is NotFromSource for a GitSource. One that no other source declares
// was created at bootstrap and is accepted.
func (r *Controller) NotFromParent(obj *v1alpha1.GitSource) status.HeldBy {
	if _, _, declared := r.Store.Owner(v1alpha1.KindGitSource, obj.Name); !declared {
		return status.HeldBy{}
	}
	return r.NotFromSource(obj, v1alpha1.KindGitSource, obj.Spec)
}

// Origin returns the source that declares an object and its revision. It returns
// false for an object that no source declares.
func (r *Controller) Origin(kind, name string) (from control.Origin, revision string, ok bool) {
	return r.runtimes.origin(kind, name)
}

func (s *runtimes) origin(kind, name string) (from control.Origin, revision string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rt := range s.byName {
		if rt.pending == nil {
			continue
		}
		if _, declared := rt.pending.Hash(kind, name); declared {
			return s.originOf(rt), rt.pending.Revision.String(), true
		}
	}
	source, _, ok := s.store.Owner(kind, name)
	if !ok {
		return control.Origin{}, "", false
	}
	record, _ := s.store.Source(source)
	if rt := s.byName[source]; rt != nil {
		return s.originOf(rt), record.Revision, true
	}
	return control.Origin{Cluster: record.Cluster, URL: record.URL, Tree: s.treeOf(source)}, record.Revision, true
}

func (s *runtimes) originOf(rt *runtime) control.Origin {
	return control.Origin{Cluster: rt.spec.Cluster, URL: rt.spec.URL, Serial: rt.serial, Tree: s.treeOf(rt.name)}
}

// treeOf returns a reader of payload paths of a source. It uses the runtime that
// the source has at the time of the call. An unverified source provides no payload
// paths, since anyone can write its files.
func (s *runtimes) treeOf(name string) func(context.Context, string) (fs.FS, verify.Commit, error) {
	return func(ctx context.Context, revision string) (fs.FS, verify.Commit, error) {
		reader, mode, err := s.reader(name)
		if err != nil {
			return nil, verify.Commit{}, err
		}
		rev, err := sources.ParseRevision(revision)
		if err != nil {
			return nil, verify.Commit{}, fmt.Errorf("revision of GitSource/%s: %w", name, err)
		}
		snap, err := reader.At(ctx, rev)
		if err != nil {
			return nil, verify.Commit{}, err
		}
		commit := verify.Commit{Mode: mode, Revision: snap.Revision.String()}
		if snap.Signer != nil {
			commit.Signer = snap.Signer.Name
		}
		return snap.FS, commit, nil
	}
}

// reader returns the reader of a verified source and its verification mode.
func (s *runtimes) reader(name string) (reader, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rt := s.byName[name]
	if rt == nil {
		return nil, "", control.NewError("SourceNotRead", true, fmt.Errorf(
			"GitSource/%s isn't open: deleted, suspended or not reconciled yet", name))
	}
	if rt.spec.Verify == nil {
		return nil, "", control.NewError("SourceUnverified", false, fmt.Errorf(
			"GitSource/%s isn't verified; payload paths require spec.verify", name))
	}
	return rt.reader, rt.spec.Verify.Mode, nil
}

// isPending reports whether a verified revision that is being applied declares the
// object with this spec.
func (s *runtimes) isPending(kind, name, hash string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rt := range s.byName {
		if rt.pending == nil {
			continue
		}
		if want, ok := rt.pending.Hash(kind, name); ok && want == hash {
			return true
		}
	}
	return false
}

// asDeclared reports whether an object matches its declaration in the accepted
// revision, or in the one being applied.
func (s *runtimes) asDeclared(obj client.Object) bool {
	kind, spec := kindOf(obj)
	hash, err := desired.SpecHash(spec)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rt := s.byName[obj.GetAnnotations()[v1alpha1.AnnotationSource]]
	if rt == nil {
		return false
	}
	wanted := rt.pending
	if wanted == nil {
		wanted = rt.state
	}
	if wanted == nil {
		return false
	}
	for _, o := range wanted.Objects {
		if o.Kind == kind && o.Name == obj.GetName() {
			return o.Hash == hash && contains(obj.GetLabels(), o.Manifest.GetLabels()) && contains(obj.GetAnnotations(), o.Manifest.GetAnnotations())
		}
	}
	return false
}

// kindOf returns the kind and the spec of a declared object.
func kindOf(obj client.Object) (kind string, spec any) {
	switch o := obj.(type) {
	case *v1alpha1.GitSource:
		return v1alpha1.KindGitSource, o.Spec
	case *v1alpha1.ClusterRelease:
		return v1alpha1.KindClusterRelease, o.Spec
	case *v1alpha1.NodeOS:
		return v1alpha1.KindNodeOS, o.Spec
	case *v1alpha1.TrustPolicy:
		return v1alpha1.KindTrustPolicy, o.Spec
	default:
		return "", nil
	}
}
