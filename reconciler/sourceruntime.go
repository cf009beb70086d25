// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/desired"
	"github.com/lockstep-dev/lockstep/sources/git"
)

// sourceRuntimes hold what the process keeps of each GitSource, and answer
// for others whether an object is what its source said.
type sourceRuntimes struct {
	group
	opts    Options
	store   *state.Store
	secrets typedcorev1.SecretInterface

	// changed and poolsChanged wake the controllers of what sources declare,
	// after a revision was accepted or while one is being applied.
	changed, poolsChanged chan event.TypedGenericEvent[string]
	// edits wakes the controller of a source whose directory changed.
	edits chan event.TypedGenericEvent[string]

	mu     sync.Mutex
	byName map[string]*sourceRuntime
	// made counts the runtimes that were made.
	made int
}

// sourceRuntime is one GitSource at work. Its fields are guarded by the lock
// of sourceRuntimes; the reader is safe for concurrent use by itself.
type sourceRuntime struct {
	name   string
	spec   v1alpha1.GitSourceSpec
	reader reader
	// serial tells the runtimes of one source apart.
	serial int
	// failures counts the looks since the last one that came to its end.
	failures int
	// state is what was accepted last in this process, nil before; pending is
	// what is being applied.
	state, pending *desired.State
	// applied are the hashes of the manifests that were applied last, by
	// "Kind/name".
	applied map[string]string
}

// Start implements manager.Runnable: watches of directories run until ctx ends.
func (s *sourceRuntimes) Start(ctx context.Context) error {
	s.run(ctx)
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*sourceRuntimes) NeedLeaderElection() bool { return true }

func newSourceRuntimes(o *Operator) *sourceRuntimes {
	return &sourceRuntimes{
		opts: o.opts, store: o.base.store, secrets: o.kube.CoreV1().Secrets(v1alpha1.Namespace),
		changed:      make(chan event.TypedGenericEvent[string], 16),
		poolsChanged: make(chan event.TypedGenericEvent[string], 16),
		edits:        make(chan event.TypedGenericEvent[string], 16),
		byName:       map[string]*sourceRuntime{},
	}
}

// get returns the runtime for a GitSource, made anew when the way in which it
// reads has changed. It is called by the controller of GitSources alone, which
// looks at one source at a time.
func (s *sourceRuntimes) get(obj *v1alpha1.GitSource) (*sourceRuntime, error) {
	s.mu.Lock()
	rt := s.byName[obj.Name]
	if rt != nil && equality.Semantic.DeepEqual(readingPart(&rt.spec), readingPart(&obj.Spec)) {
		rt.spec = *obj.Spec.DeepCopy()
		s.mu.Unlock()
		return rt, nil
	}
	s.mu.Unlock()
	source, err := s.open(obj)
	if err != nil {
		return nil, err
	}
	next := &sourceRuntime{name: obj.Name, spec: *obj.Spec.DeepCopy(), reader: source, applied: map[string]string{}}
	if rt != nil {
		next.state, next.applied = rt.state, rt.applied
	}
	// Both would use one mirror: the old one ends before the new one begins.
	if err := s.drop(obj.Name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.made++
	next.serial = s.made
	s.byName[obj.Name] = next
	s.mu.Unlock()
	// A payload path that couldn't be read without it can be now.
	notify(s.changed)
	return next, nil
}

// readingPart is the part of a spec that git.New depends on.
func readingPart(spec *v1alpha1.GitSourceSpec) v1alpha1.GitSourceSpec {
	part := *spec
	part.Interval, part.Prune, part.Suspend, part.WriteBack, part.Cluster = v1alpha1.GitSourceSpec{}.Interval, nil, false, nil, ""
	return part
}

// config translates a GitSource for package git.
func (s *sourceRuntimes) config(obj *v1alpha1.GitSource) (git.Config, error) {
	spec := obj.Spec.DeepCopy()
	host, err := hostOf(spec.URL)
	if err != nil {
		return git.Config{}, err
	}
	cfg := git.Config{
		URL:           spec.URL,
		Ref:           git.Ref{Branch: spec.Ref.Branch, Tag: spec.Ref.Tag, Semver: spec.Ref.Semver, Commit: spec.Ref.Commit, Name: spec.Ref.Name},
		Path:          spec.Path,
		Dir:           filepath.Join(s.opts.StateDir, "sources", obj.Name),
		Timeout:       spec.Timeout.Duration,
		AllowInsecure: s.opts.AllowInsecureSources,
		Now:           s.opts.Now,
	}
	if spec.MaxSize != nil {
		cfg.MaxSize = spec.MaxSize.Value()
	}
	if ref := spec.SecretRef; ref != nil {
		cfg.Credentials = func(ctx context.Context) (git.Credentials, error) {
			data, err := boundSecret(ctx, s.secrets, ref.Name, v1alpha1.UseGitRead, host)
			if err != nil {
				return git.Credentials{}, err
			}
			return git.CredentialsFromSecret(data), nil
		}
	}
	if v := spec.Verify; v != nil {
		cfg.InitialCommit = v.InitialCommit
		cfg.Authorities = func(context.Context) ([]git.Authority, error) { return s.authorities() }
	}
	return cfg, nil
}

// authorities are the keys of the git role in the trust document in force.
func (s *sourceRuntimes) authorities() ([]git.Authority, error) {
	current, ok := s.store.Trust(s.opts.Now())
	if !ok {
		return nil, &reasonError{string(trust.PolicyMissing), true, fmt.Errorf(
			"spec.verify asks for signed commits, but no trust policy is in force: apply a TrustPolicy and pin its digest")}
	}
	role, ok := current.Document.Roles[trust.RoleGit]
	if !ok || role.Threshold > 1 {
		return nil, &reasonError{string(trust.ThresholdNotMet), true, fmt.Errorf(
			"spec.verify.mode head wants one signature of the role git; the trust document asks for %d", role.Threshold)}
	}
	var out []git.Authority
	for _, key := range current.Document.RoleKeys(trust.RoleGit) {
		if key.Covers(s.opts.Now()) {
			out = append(out, git.Authority{Name: key.Name, SSH: key.SSH, OpenPGP: key.PGP})
		}
	}
	return out, nil
}

// drop forgets the runtime of a source that was deleted or is read in another
// way, and waits for the calls that use its mirror. What it declared goes on
// being reconciled as it was accepted last.
func (s *sourceRuntimes) drop(name string) error {
	s.mu.Lock()
	rt := s.byName[name]
	delete(s.byName, name)
	s.mu.Unlock()
	if rt == nil {
		return nil
	}
	return rt.reader.Close()
}

// update changes the runtime's state under the lock, and wakes those who act on
// what sources declare.
func (s *sourceRuntimes) update(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	notify(s.changed)
	notify(s.poolsChanged)
}

// edited is notFromSource for a GitSource: one that no other source declares was
// made by bootstrap, and is what it says.
func (s *sourceRuntimes) edited(obj *v1alpha1.GitSource) status.HeldBy {
	if _, _, declared := s.store.Owner(v1alpha1.KindGitSource, obj.Name); !declared {
		return status.HeldBy{}
	}
	return s.notFromSource(obj, v1alpha1.KindGitSource, obj.Spec)
}

// failed counts the failed looks at a source since the last good one.
func (s *sourceRuntimes) failed(name string, yes bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	rt := s.byName[name]
	if rt == nil {
		return 1
	}
	if rt.failures++; !yes {
		rt.failures = 0
	}
	return rt.failures
}

// notFromSource is wall 3: it returns why the object must not be acted upon,
// empty if its spec is the one that its source said. What differs is being
// repaired by the source's own controller meanwhile.
func (s *sourceRuntimes) notFromSource(obj client.Object, kind string, spec any) status.HeldBy {
	live, err := desired.SpecHash(spec)
	if err != nil {
		return status.HeldBy{Reason: status.ReasonNotFromSource, Message: err.Error()}
	}
	source, want, ok := s.store.Owner(kind, obj.GetName())
	if ok && live == want || s.isPending(kind, obj.GetName(), live) {
		return status.HeldBy{}
	}
	message := "no accepted revision of a GitSource declares it; declare it in Git"
	if ok {
		message = fmt.Sprintf("its spec isn't what GitSource/%s said; it is being put back; to change it, change it in Git", source)
	}
	return status.HeldBy{Reason: status.ReasonNotFromSource, Message: message, Transient: ok}
}

// asDeclared reports whether an object is as its source declares it now, or in
// the revision that is being applied.
func (s *sourceRuntimes) asDeclared(obj client.Object) bool {
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
	state := rt.pending
	if state == nil {
		state = rt.state
	}
	if state == nil {
		return false
	}
	for _, o := range state.Objects {
		if o.Kind == kind && o.Name == obj.GetName() {
			return o.Hash == hash && contains(obj.GetLabels(), o.Manifest.GetLabels()) && contains(obj.GetAnnotations(), o.Manifest.GetAnnotations())
		}
	}
	return false
}

// kindOf returns the kind and the spec of an object that a source declares.
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

// isPending reports whether a verified revision that is being applied right now
// declares the object with this spec.
func (s *sourceRuntimes) isPending(kind, name, hash string) bool {
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

// origin says who declares an object: what the rules of the trust policy match,
// and where payload paths are read. It reports false for an object that no
// source declares.
func (s *sourceRuntimes) origin(kind, name string) (from origin, revision string, ok bool) {
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
		return origin{}, "", false
	}
	record, _ := s.store.Source(source)
	if rt := s.byName[source]; rt != nil {
		return s.originOf(rt), record.Revision, true
	}
	return origin{cluster: record.Cluster, url: record.URL, tree: s.treeOf(source)}, record.Revision, true
}

func (s *sourceRuntimes) originOf(rt *sourceRuntime) origin {
	return origin{cluster: rt.spec.Cluster, url: rt.spec.URL, serial: rt.serial, tree: s.treeOf(rt.name)}
}

// treeOf returns the reader of payload paths of a source: of the runtime that
// the source has when a path is read. An unverified source offers none: its
// files are anybody's.
func (s *sourceRuntimes) treeOf(name string) func(context.Context, string) (fs.FS, verify.Commit, error) {
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

// reader returns what reads a source's files, and how its revisions are
// verified.
func (s *sourceRuntimes) reader(name string) (reader, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rt := s.byName[name]
	if rt == nil {
		return nil, "", &reasonError{"SourceNotRead", true, fmt.Errorf(
			"GitSource/%s isn't being read: it was deleted, is suspended, or wasn't looked at yet", name)}
	}
	if rt.spec.Verify == nil {
		return nil, "", &reasonError{"SourceUnverified", false, fmt.Errorf(
			"GitSource/%s isn't verified (spec.verify), so that no payload path of it is accepted", name)}
	}
	return rt.reader, rt.spec.Verify.Mode, nil
}
