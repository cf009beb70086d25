// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package state persists the reconciler's accepted state: the active trust
// policy; per Git source the accepted revision and the spec hashes of its
// declared objects; per release the accepted and the completed versions.
//
// Anyone with write access can edit a declared object. The reconciler therefore
// acts on an object only while its spec hash is the persisted one (trust
// boundary T3), and on the persisted trust policy, even if the TrustPolicy
// object was edited or deleted.
//
// The store is one ConfigMap per source, one per release and one for the trust
// policy, without owner and never pruned. Only the leader writes them. Writes are
// compare-and-swap, so a process that lost its lease can't overwrite what its
// successor wrote. docs/adr/0017-one-object-per-record.md describes the layout.
package state

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
)

// Source is the accepted state of one GitSource.
type Source struct {
	// URL and Cluster are those of the GitSource. The rules of the trust policy
	// match them, also after the GitSource was deleted.
	URL     string `json:"url,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	// Revision as main@sha1:<hex>.
	Revision string `json:"revision"`
	// Tree is the canonical tree's digest.
	Tree string `json:"tree,omitempty"`
	// Subject and Signer are for display; no decision depends on them.
	Subject string `json:"subject,omitempty"`
	Signer  string `json:"signer,omitempty"`
	// SignedBy has the parts of Signer, zero for an unverified revision.
	SignedBy Signer `json:"signedBy,omitzero"`
	// Time when the revision was accepted.
	Time time.Time `json:"time"`
	// Objects are the spec hashes of the declared objects, by "Kind/name".
	Objects map[string]string `json:"objects"`
	// Removed are those of Objects, sorted, that are no longer in Git and weren't
	// deleted. They start nothing new.
	Removed []string `json:"removed,omitempty"`
	// UIDs are those of the declared objects after the apply, by the same key.
	// A source prunes an object only while its UID is unchanged.
	UIDs map[string]string `json:"uids,omitempty"`
	// Manifests are the hashes of the applied manifests, labels and annotations
	// included, by the same key. After a restart only manifests that differ are
	// applied.
	Manifests map[string]string `json:"manifests,omitempty"`
	// SpentRewind is the value of the last accept-rewind annotation that was
	// used; each value is valid once.
	SpentRewind string `json:"spentRewind,omitempty"`
	// Published is the last report on the status branch; only SetPublished
	// changes it.
	Published Published `json:"published,omitzero"`
}

// Signer is the verified signer of a revision.
type Signer struct {
	// Name is the authority's name, Format "ssh" or "openpgp", Fingerprint the
	// fingerprint of the key.
	Name        string `json:"name,omitempty"`
	Format      string `json:"format,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Published identifies the last report on a status branch. With it a new process
// neither repeats the report nor takes its own commit for an external one.
type Published struct {
	// Key identifies the report, Commit the commit's hash.
	Key    string `json:"key,omitempty"`
	Commit string `json:"commit,omitempty"`
}

// Release is the persisted state of a ClusterRelease, independent of its status.
type Release struct {
	// Product is the one that the payloads declare.
	Product string `json:"product,omitempty"`
	// Accepted is the verified release that is being applied.
	Accepted *Accepted `json:"accepted,omitempty"`
	// Capabilities are all that were ever enabled, sorted. A capability can't be
	// disabled in a running cluster, whatever a later version or spec requests.
	Capabilities []string `json:"capabilities,omitempty"`
	// SpentRollback is the last consumed permission of spec.rollback.
	SpentRollback string `json:"spentRollback,omitempty"`
	// Completed are the releases that completed, newest first, at most
	// MaxCompleted. The first one is installed in the cluster.
	Completed []Completed `json:"completed,omitempty"`
	// Deletion and ServiceAccount are those of the declared spec. They are needed
	// once the object is deleted, also if no process was running then.
	Deletion       string `json:"deletion,omitempty"`
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// Unmanaged are the objects that overrides exclude from management, sorted,
	// at most MaxUnmanaged. They are kept whatever Deletion is.
	Unmanaged []Object `json:"unmanaged,omitempty"`
	// Pools are the last observed spec hashes of the NodeOS objects that its
	// payloads declare, by name. With them a rollout in progress continues while
	// the next payload is being loaded.
	Pools map[string]string `json:"pools,omitempty"`
}

// Accepted is a release that was accepted for apply. After a restart the
// reconciler continues with it until the desired release is accepted.
type Accepted struct {
	payload.Identity
	// Revision of the source at which Path is read.
	Revision string `json:"revision,omitempty"`
	// Signatures are digests of signature material to fetch first.
	Signatures []string `json:"signatures,omitempty"`
	// State is the sync worker's until the release is complete, then "". A
	// rollback to a completed release from one that was only started is
	// incomplete too.
	State string `json:"state,omitempty"`
	// Waits are the health timeouts in progress, of objects that aren't ready or
	// became unhealthy, at most MaxWaits. With them a restart doesn't reset the
	// timeouts.
	Waits []Wait `json:"waits,omitempty"`
	// Selection is the encoded selection of the payload's manifests when it was
	// accepted; the spec may have changed since. "" if unknown.
	Selection string `json:"selection,omitempty"`
}

// MaxUnmanaged limits the persisted unmanaged objects of one release; a
// ClusterRelease can list as many.
const MaxUnmanaged = 100

// Object identifies a Kubernetes object.
type Object struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// MaxWaits limits the persisted waits of one release.
const MaxWaits = 20

// Wait is the used part of an object's health timeout.
type Wait struct {
	Object
	// Spent is the time used before Running; Running is zero while the clock is
	// stopped.
	Spent   metav1.Duration `json:"spent"`
	Running time.Time       `json:"running,omitzero"`
}

// MaxCompleted limits the persisted completed versions of one release.
const MaxCompleted = 10

// Completed is one release that completed.
type Completed struct {
	payload.Identity
	VersionHash string    `json:"versionHash,omitempty"`
	Time        time.Time `json:"time"`
}

// Store holds the accepted state in memory and in the cluster. It is safe for
// concurrent use.
type Store struct {
	objects objects

	// writing serializes writes.
	writing sync.Mutex

	mu      sync.Mutex
	doc     document
	trust   *trust.Accepted
	changed chan struct{}
}

// New returns a store that is empty until Load is called. The client is for
// the ConfigMaps of Lockstep's own namespace.
func New(client typedcorev1.ConfigMapInterface) *Store {
	return &Store{objects: newObjects(client), doc: document{}.clone(), changed: make(chan struct{})}
}

// Load reads the store from the cluster. Without any of its ConfigMaps it is
// empty; an unreadable one is an error, since an empty store would drop the trust
// policy. It writes nothing: a store of the previous format is converted at the
// first write.
func (s *Store) Load(ctx context.Context) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	doc, err := s.objects.load(ctx)
	if err != nil {
		return err
	}
	rawTrust, err := s.objects.read(ctx, TrustName)
	if err != nil {
		return err
	}
	var policy *trust.Accepted
	if rawTrust != nil {
		loaded, err := trust.Load(rawTrust)
		if err != nil {
			return fmt.Errorf("configmap %s: %w; restore it from a backup, or pin the policy's digest again: %s", TrustName, err, deleteCommand(TrustName))
		}
		policy = &loaded
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc = doc
	s.trust = policy
	s.notify()
	return nil
}

// Trust returns the trust policy that is active at the given time, and false if
// none was accepted yet. The result must not be changed.
func (s *Store) Trust(now time.Time) (trust.Accepted, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trust == nil {
		return trust.Accepted{}, false
	}
	return s.trust.Settle(now), true
}

// SetTrust stores a policy that trust.Accept or trust.Pin returned.
func (s *Store) SetTrust(ctx context.Context, policy trust.Accepted) error {
	raw, err := policy.Marshal()
	if err != nil {
		return fmt.Errorf("encode the trust policy: %w", err)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.objects.write(ctx, TrustName, raw); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trust = &policy
	s.notify()
	return nil
}

// Source returns the accepted state of a source, and false if there is none.
func (s *Store) Source(name string) (Source, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	src, ok := s.doc.Sources[name]
	return src, ok
}

// SetSource stores the accepted state of a source. Objects that it declares are
// removed from other sources; the caller ensures that those sources are deleted.
func (s *Store) SetSource(ctx context.Context, name string, src Source) error {
	return s.edit(ctx, func(d *document) {
		src.Published = d.Sources[name].Published
		d.claim(name, src)
	})
}

// SetPublished records the last report on a source's status branch. It does
// nothing for a source without accepted state.
func (s *Store) SetPublished(ctx context.Context, name string, p Published) error {
	if src, ok := s.Source(name); !ok || src.Published == p {
		return nil
	}
	return s.edit(ctx, func(d *document) {
		if src, ok := d.Sources[name]; ok {
			src.Published = p
			d.Sources[name] = src
		}
	})
}

// Release returns the persisted state of a ClusterRelease.
func (s *Store) Release(name string) Release {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.doc.Releases[name]
	r.Completed, r.Capabilities = slices.Clone(r.Completed), slices.Clone(r.Capabilities)
	r.Unmanaged = slices.Clone(r.Unmanaged)
	return r
}

// Releases returns the persisted state of all ClusterReleases, by name.
func (s *Store) Releases() map[string]Release {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.doc.Releases)
}

// Complete records a completed release. Recording the newest one again changes
// nothing.
func (s *Store) Complete(ctx context.Context, name, product string, done Completed) error {
	return s.editRelease(ctx, name, func(r *Release) bool {
		if len(r.Completed) > 0 && r.Completed[0].VersionHash == done.VersionHash && r.Completed[0].Identity.Equal(done.Identity) {
			return false
		}
		r.Product = product
		r.Completed = slices.Insert(slices.Clone(r.Completed), 0, done)
		r.Completed = r.Completed[:min(len(r.Completed), MaxCompleted)]
		return true
	})
}

// SetAccepted records the release that is being applied, and adds its enabled
// capabilities to those enabled before. Recording the same again changes nothing.
func (s *Store) SetAccepted(ctx context.Context, name string, accepted Accepted, enabled []string) error {
	return s.SetAcceptedWhile(ctx, name, accepted, enabled, func() bool { return true })
}

// SetAcceptedWhile is SetAccepted for a release that may have been superseded
// meanwhile: it records nothing if still returns false under the write lock.
func (s *Store) SetAcceptedWhile(ctx context.Context, name string, accepted Accepted, enabled []string, still func() bool) error {
	return s.editRelease(ctx, name, func(r *Release) bool {
		if !still() {
			return false
		}
		all := slices.Concat(r.Capabilities, enabled)
		slices.Sort(all)
		all = slices.Compact(all)
		if r.Accepted != nil && reflect.DeepEqual(*r.Accepted, accepted) && len(all) == len(r.Capabilities) {
			return false
		}
		r.Accepted, r.Capabilities = &accepted, all
		return true
	})
}

// SetDeletion records the deletion policy of a release, the service account that
// deletes its objects, and the unmanaged objects, sorted.
func (s *Store) SetDeletion(ctx context.Context, name, deletion, serviceAccount string, unmanaged ...Object) error {
	if len(unmanaged) > MaxUnmanaged {
		return &limitError{fmt.Errorf("ClusterRelease/%s has %d unmanaged objects, the limit is %d; remove some of spec.overrides", name, len(unmanaged), MaxUnmanaged)}
	}
	return s.editRelease(ctx, name, func(r *Release) bool {
		if r.Deletion == deletion && r.ServiceAccount == serviceAccount && slices.Equal(r.Unmanaged, unmanaged) {
			return false
		}
		r.Deletion, r.ServiceAccount, r.Unmanaged = deletion, serviceAccount, slices.Clone(unmanaged)
		return true
	})
}

// SpendRollback records that a rollback permission was consumed.
func (s *Store) SpendRollback(ctx context.Context, name, permission string) error {
	return s.editRelease(ctx, name, func(r *Release) bool {
		if r.SpentRollback == permission {
			return false
		}
		r.SpentRollback = permission
		return true
	})
}

// MaxPools limits the persisted NodeOS objects of one release.
const MaxPools = 200

// SetPool records the spec hash of a NodeOS that a release's payload declares.
// It is removed from any other release. A release that has MaxPools others is an
// error.
func (s *Store) SetPool(ctx context.Context, name, pool, hash string) error {
	pools := s.Release(name).Pools
	if _, known := pools[pool]; !known && len(pools) >= MaxPools {
		return &limitError{fmt.Errorf("persist NodeOS/%s: ClusterRelease/%s has %d NodeOS objects, the limit is %d; move some to another release",
			pool, name, len(pools), MaxPools)}
	}
	if other, _, ok := s.PoolOwner(pool); ok && other != name {
		if err := s.DropPool(ctx, pool); err != nil {
			return err
		}
	}
	return s.editRelease(ctx, name, func(r *Release) bool {
		if r.Pools[pool] == hash {
			return false
		}
		r.Pools = maps.Clone(r.Pools)
		if r.Pools == nil {
			r.Pools = map[string]string{}
		}
		r.Pools[pool] = hash
		return true
	})
}

// DropPool removes a deleted NodeOS.
func (s *Store) DropPool(ctx context.Context, pool string) error {
	name, _, ok := s.PoolOwner(pool)
	if !ok {
		return nil
	}
	return s.editRelease(ctx, name, func(r *Release) bool {
		r.Pools = maps.Clone(r.Pools)
		delete(r.Pools, pool)
		return true
	})
}

// PoolOwner returns the release whose payload declared a NodeOS, and its last
// observed spec hash.
func (s *Store) PoolOwner(pool string) (release, hash string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.doc.Releases)) {
		if hash, ok := s.doc.Releases[name].Pools[pool]; ok {
			return name, hash, true
		}
	}
	return "", "", false
}

// editRelease writes a release if change, called on a copy first, returns true.
func (s *Store) editRelease(ctx context.Context, name string, change func(*Release) bool) error {
	r := s.Release(name)
	if !change(&r) {
		return nil
	}
	return s.edit(ctx, func(d *document) {
		r := d.Releases[name]
		change(&r)
		d.Releases[name] = r
	})
}

// DropRelease removes a deleted ClusterRelease. The high-water mark of its
// product is kept in the ledger.
func (s *Store) DropRelease(ctx context.Context, name string) error {
	s.mu.Lock()
	_, ok := s.doc.Releases[name]
	s.mu.Unlock()
	if !ok {
		return nil
	}
	return s.edit(ctx, func(d *document) { delete(d.Releases, name) })
}

// edit changes the document in the cluster, then in memory: one write for each
// changed source and release. After an error the records that were written before
// it stay changed, and memory has what the cluster has.
func (s *Store) edit(ctx context.Context, change func(*document)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	before, next := s.doc.clone(), s.doc.clone()
	s.mu.Unlock()
	if err := s.objects.convert(ctx, before); err != nil {
		return err
	}
	change(&next)
	for _, c := range changes(before, next) {
		if err := s.objects.put(ctx, c); err != nil {
			return err
		}
		s.mu.Lock()
		s.doc.set(c)
		s.notify()
		s.mu.Unlock()
	}
	return nil
}

// Owner returns the source that declares an object and the accepted spec hash,
// and false if no source does.
func (s *Store) Owner(kind, name string) (source, hash string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for source, src := range s.doc.Sources {
		if hash, ok := src.Objects[kind+"/"+name]; ok {
			return source, hash, true
		}
	}
	return "", "", false
}

// Removed reports whether an object with an owner is no longer in Git.
func (s *Store) Removed(kind, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, src := range s.doc.Sources {
		if slices.Contains(src.Removed, kind+"/"+name) {
			return true
		}
	}
	return false
}

// Declared returns the source of each object of a kind that Git declares, by name.
func (s *Store) Declared(kind string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for source, src := range s.doc.Sources {
		for key := range src.Objects {
			if name, ok := strings.CutPrefix(key, kind+"/"); ok && !slices.Contains(src.Removed, key) {
				out[name] = source
			}
		}
	}
	return out
}

// Changed returns a channel that is closed at the next change.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// notify signals a change; the caller holds the lock.
func (s *Store) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}
