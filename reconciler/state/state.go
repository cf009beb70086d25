// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package state remembers what was accepted: the trust policy in force, for
// each Git source the revision and the spec hashes of what it declared, and for
// each release the versions that were level.
//
// Declared objects are mere carriers: anyone who may edit them could change
// what they say. The reconciler acts on an object only while its spec hash is
// the one that was accepted here (wall 3), and on the trust policy that was
// accepted here, whatever the TrustPolicy object says or whether it exists.
// The store is two ConfigMaps without owner that nothing prunes. Only the
// leader writes them; writes are compare-and-swap, so that a leader that lost
// its lease without knowing it yet changes nothing.
package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
)

// Names of the ConfigMaps that hold the store, and of their one key.
const (
	SourcesName = "lockstep-state"
	TrustName   = "lockstep-trust"
	key         = "state.json"
)

// Format is the version of the stored form that is written; readers take
// Format-1 to Format+1, as long as fields keep their meaning.
const Format = 1

// MaxBytes bounds each stored document, below what etcd takes.
const MaxBytes = 1 << 20

// Source is what was accepted of one GitSource.
type Source struct {
	// URL and Cluster are those of the GitSource: what rules of the trust
	// policy match, also after the GitSource is gone.
	URL     string `json:"url,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	// Revision as main@sha1:<hex>.
	Revision string `json:"revision"`
	// Tree is the canonical tree's digest.
	Tree string `json:"tree,omitempty"`
	// Subject and Signer are shown, never decided upon.
	Subject string `json:"subject,omitempty"`
	Signer  string `json:"signer,omitempty"`
	// SignedBy has the parts of Signer, zero for an unverified revision.
	SignedBy Signer `json:"signedBy,omitzero"`
	// Time when the revision was accepted here.
	Time time.Time `json:"time"`
	// Objects are the spec hashes of what it declared, by "Kind/name".
	Objects map[string]string `json:"objects"`
	// UIDs are those of the declared objects as they were after the apply, by
	// the same key; a source prunes only what still has its UID.
	UIDs map[string]string `json:"uids,omitempty"`
	// Manifests are the hashes of the manifests that were applied, labels and
	// annotations included, by the same key: a new process applies only what
	// differs.
	Manifests map[string]string `json:"manifests,omitempty"`
	// SpentRewind is the last one-use rewind that was used.
	SpentRewind string `json:"spentRewind,omitempty"`
	// Published is what the status branch was told last; only SetPublished
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

// Published is what a status branch was told last, so that a new process
// neither repeats it nor mistakes its own commit for somebody else's.
type Published struct {
	// Key identifies the report, Commit the commit's hash.
	Key    string `json:"key,omitempty"`
	Commit string `json:"commit,omitempty"`
}

// Release is what is remembered of a ClusterRelease, apart from its status.
type Release struct {
	// Product that the payloads named.
	Product string `json:"product,omitempty"`
	// Accepted is the release that was verified and is being applied.
	Accepted *Accepted `json:"chosen,omitempty"`
	// Capabilities are those that were ever enabled, sorted: none can be taken
	// from a running cluster, whatever a later version or spec asks for.
	Capabilities []string `json:"capabilities,omitempty"`
	// SpentRollback is the last permission of spec.rollback that was used.
	SpentRollback string `json:"spentRollback,omitempty"`
	// Completed are the releases that were level, newest first, at most
	// MaxCompleted; the first is what the cluster has.
	Completed []Completed `json:"completed,omitempty"`
	// Deletion and ServiceAccount are what the declared object says about its
	// end: they are needed when it is gone, also when it went while nobody
	// looked.
	Deletion       string `json:"deletion,omitempty"`
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// Unmanaged are the objects that overrides left to people, sorted, at most
	// MaxUnmanaged: they stay whatever Deletion says.
	Unmanaged []Object `json:"unmanaged,omitempty"`
	// Pools are the spec hashes of the NodeOS objects that its payloads
	// declared, by name, as they were met last. A payload on its way doesn't
	// orphan a rollout that the one before it began.
	Pools map[string]string `json:"pools,omitempty"`
}

// Accepted is a release that was accepted to be applied: what a new process goes
// on with while the desired one can't be.
type Accepted struct {
	payload.Identity
	// Revision of the source that Path is read at.
	Revision string `json:"revision,omitempty"`
	// State is the sync worker's while it wasn't level since it was accepted,
	// "" once it was: going back to a completed release from one that was only
	// begun is unfinished work.
	State string `json:"state,omitempty"`
	// Waits are the clocks of the objects that are waited for, or that are ill
	// where all was level, so that a new process doesn't give them all their
	// time again; at most MaxWaits.
	Waits []Wait `json:"waits,omitempty"`
	// Selection is what was selected of the payload, as its owner writes it;
	// "" in a store of before it was kept. The spec may select otherwise by now.
	Selection string `json:"selection,omitempty"`
}

// MaxUnmanaged bounds the objects that are remembered as left to people: what a
// ClusterRelease may name.
const MaxUnmanaged = 100

// Object names an object.
type Object struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// MaxWaits bounds the waits that are remembered of one release.
const MaxWaits = 20

// Wait is how much of the time that an object may take is spent.
type Wait struct {
	Object
	// Spent until Running; Running is zero while the clock stands still.
	Spent   metav1.Duration `json:"spent"`
	Running time.Time       `json:"running,omitzero"`
}

// MaxCompleted bounds what is remembered of one release.
const MaxCompleted = 10

// Completed is one release that was level.
type Completed struct {
	payload.Identity
	VersionHash string    `json:"versionHash,omitempty"`
	Time        time.Time `json:"time"`
}

// document is the stored form of all sources and releases.
type document struct {
	Format   int                `json:"format"`
	Sources  map[string]Source  `json:"sources"`
	Releases map[string]Release `json:"releases,omitempty"`
}

func (d document) clone() document {
	next := document{Format: Format, Sources: maps.Clone(d.Sources), Releases: maps.Clone(d.Releases)}
	if next.Sources == nil {
		next.Sources = map[string]Source{}
	}
	if next.Releases == nil {
		next.Releases = map[string]Release{}
	}
	return next
}

// Store keeps what was accepted, in memory and in the cluster. It is safe for
// concurrent use.
type Store struct {
	client typedcorev1.ConfigMapInterface

	// writing lets one writer through at a time: each builds on the last.
	writing sync.Mutex

	mu    sync.Mutex
	doc   document
	trust *trust.Accepted
	// versions are the resourceVersions that the next write replaces; empty
	// means that the object must not exist yet.
	versions map[string]string
	changed  chan struct{}
}

// New returns a store that is empty until Load was called. The client is for
// the ConfigMaps of Lockstep's own namespace.
func New(client typedcorev1.ConfigMapInterface) *Store {
	return &Store{
		client:   client,
		doc:      document{}.clone(),
		versions: map[string]string{},
		changed:  make(chan struct{}),
	}
}

// Load reads the store from the cluster; what doesn't exist yet is empty. An
// unreadable store is an error, never an empty one: that would forget what is
// trusted.
func (s *Store) Load(ctx context.Context) error {
	raw, err := s.read(ctx, SourcesName)
	if err != nil {
		return err
	}
	doc := document{Format: Format}
	if raw != nil {
		if doc, err = decode(raw); err != nil {
			return fmt.Errorf("configmap %s: %w; restore it from a backup, or delete it to have every source accepted anew", SourcesName, err)
		}
	}
	rawTrust, err := s.read(ctx, TrustName)
	if err != nil {
		return err
	}
	var policy *trust.Accepted
	if rawTrust != nil {
		loaded, err := trust.Load(rawTrust)
		if err != nil {
			return fmt.Errorf("configmap %s: %w; restore it from a backup, or delete it and pin the policy's digest again", TrustName, err)
		}
		policy = &loaded
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc = doc.clone()
	s.trust = policy
	s.notify()
	return nil
}

// decode reads the stored form of the sources.
func decode(raw []byte) (document, error) {
	var doc document
	if err := json.Unmarshal(raw, &doc); err != nil {
		return doc, fmt.Errorf("decode: %w", err)
	}
	if doc.Format < Format-1 || doc.Format > Format+1 {
		return doc, fmt.Errorf("format %d: this version reads %d to %d", doc.Format, Format-1, Format+1)
	}
	return doc, nil
}

// read returns the stored bytes, or nil where the object doesn't exist, and
// remembers the version that the next write replaces.
func (s *Store) read(ctx context.Context, name string) ([]byte, error) {
	cm, err := s.client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		s.setVersion(name, "")
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configmap %s: %w", name, err)
	}
	raw, ok := cm.Data[key]
	if !ok {
		return nil, fmt.Errorf("configmap %s has no key %s", name, key)
	}
	s.setVersion(name, cm.ResourceVersion)
	return []byte(raw), nil
}

func (s *Store) setVersion(name, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions[name] = version
}

// Trust returns the policy in force, settled for the time, and false where
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
	if err := s.write(ctx, TrustName, raw); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trust = &policy
	s.notify()
	return nil
}

// Source returns what was accepted of a source, and false if nothing was.
func (s *Store) Source(name string) (Source, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	src, ok := s.doc.Sources[name]
	return src, ok
}

// SetSource stores what was accepted of a source. What it declares leaves the
// other sources: the caller has made sure that those are gone.
func (s *Store) SetSource(ctx context.Context, name string, src Source) error {
	return s.edit(ctx, func(d *document) {
		src.Published = d.Sources[name].Published
		d.Sources[name] = src
		for other, have := range d.Sources {
			if other == name || !overlap(have.Objects, src.Objects) {
				continue
			}
			have.Objects, have.UIDs, have.Manifests = maps.Clone(have.Objects), maps.Clone(have.UIDs), maps.Clone(have.Manifests)
			for key := range src.Objects {
				delete(have.Objects, key)
				delete(have.UIDs, key)
				delete(have.Manifests, key)
			}
			d.Sources[other] = have
		}
	})
}

func overlap(a, b map[string]string) bool {
	for key := range b {
		if _, ok := a[key]; ok {
			return true
		}
	}
	return false
}

// SetPublished records what the status branch of a source was told; for a
// source of which nothing was accepted it does nothing.
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

// DropSource forgets a source that was deleted.
func (s *Store) DropSource(ctx context.Context, name string) error {
	if _, ok := s.Source(name); !ok {
		return nil
	}
	return s.edit(ctx, func(d *document) { delete(d.Sources, name) })
}

// Release returns what is remembered of a ClusterRelease.
func (s *Store) Release(name string) Release {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.doc.Releases[name]
	r.Completed, r.Capabilities = slices.Clone(r.Completed), slices.Clone(r.Capabilities)
	r.Unmanaged = slices.Clone(r.Unmanaged)
	return r
}

// Releases returns what is remembered of all ClusterReleases, by name.
func (s *Store) Releases() map[string]Release {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.doc.Releases)
}

// Complete records that a release became level. Recording the newest one again
// changes nothing.
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

// SetAccepted records which release is being applied and the capabilities that are
// enabled with it, besides those that were before. Recording the same again
// changes nothing.
func (s *Store) SetAccepted(ctx context.Context, name string, chosen Accepted, enabled []string) error {
	return s.SetAcceptedWhile(ctx, name, chosen, enabled, func() bool { return true })
}

// SetAcceptedWhile is Choose for what was true a moment ago: still is asked once
// nobody else writes, and what isn't true any more isn't recorded. The next
// release may have begun meanwhile.
func (s *Store) SetAcceptedWhile(ctx context.Context, name string, chosen Accepted, enabled []string, still func() bool) error {
	return s.editRelease(ctx, name, func(r *Release) bool {
		if !still() {
			return false
		}
		all := slices.Concat(r.Capabilities, enabled)
		slices.Sort(all)
		all = slices.Compact(all)
		if r.Accepted != nil && reflect.DeepEqual(*r.Accepted, chosen) && len(all) == len(r.Capabilities) {
			return false
		}
		r.Accepted, r.Capabilities = &chosen, all
		return true
	})
}

// SetDeletion records what is to become of a release's objects when it is deleted,
// who may do that, and which objects are left to people, sorted.
func (s *Store) SetDeletion(ctx context.Context, name, deletion, serviceAccount string, unmanaged ...Object) error {
	if len(unmanaged) > MaxUnmanaged {
		return fmt.Errorf("ClusterRelease/%s leaves %d objects to people; at most %d can be remembered: remove some of spec.overrides", name, len(unmanaged), MaxUnmanaged)
	}
	return s.editRelease(ctx, name, func(r *Release) bool {
		if r.Deletion == deletion && r.ServiceAccount == serviceAccount && slices.Equal(r.Unmanaged, unmanaged) {
			return false
		}
		r.Deletion, r.ServiceAccount, r.Unmanaged = deletion, serviceAccount, slices.Clone(unmanaged)
		return true
	})
}

// SpendRollback records that a permission to go back was used: it opens no
// second way.
func (s *Store) SpendRollback(ctx context.Context, name, permission string) error {
	return s.editRelease(ctx, name, func(r *Release) bool {
		if r.SpentRollback == permission {
			return false
		}
		r.SpentRollback = permission
		return true
	})
}

// MaxPools bounds the NodeOS objects that are remembered of one release.
const MaxPools = 200

// SetPool records the spec hash of a NodeOS that a release's payload declares,
// and that it is no other's.
func (s *Store) SetPool(ctx context.Context, name, pool, hash string) error {
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
		if r.Pools == nil || len(r.Pools) >= MaxPools {
			r.Pools = map[string]string{}
		}
		r.Pools[pool] = hash
		return true
	})
}

// DropPool forgets a NodeOS that is gone.
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

// PoolOwner returns the release whose payload declared a NodeOS, and the spec
// hash as it was met last.
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

// editRelease changes what is remembered of a release if change says that
// there is a change.
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

// DropRelease forgets a ClusterRelease that was deleted; its product's
// high-water mark is kept elsewhere and stays.
func (s *Store) DropRelease(ctx context.Context, name string) error {
	s.mu.Lock()
	_, ok := s.doc.Releases[name]
	s.mu.Unlock()
	if !ok {
		return nil
	}
	return s.edit(ctx, func(d *document) { delete(d.Releases, name) })
}

// edit changes the document in the cluster, then in memory.
func (s *Store) edit(ctx context.Context, change func(*document)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	next := s.doc.clone()
	s.mu.Unlock()
	change(&next)
	raw, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode the accepted sources: %w", err)
	}
	if err := s.write(ctx, SourcesName, raw); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc = next
	s.notify()
	return nil
}

// ErrConflict says that somebody else wrote the store: this process isn't the
// leader any more, or must load again.
var ErrConflict = errors.New("the accepted state was changed by another writer")

// write replaces the stored bytes if nobody else did since they were read.
func (s *Store) write(ctx context.Context, name string, raw []byte) error {
	if len(raw) > MaxBytes {
		return fmt.Errorf("configmap %s would have %d bytes, the limit is %d", name, len(raw), MaxBytes)
	}
	s.mu.Lock()
	version := s.versions[name]
	s.mu.Unlock()
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			ResourceVersion: version,
			Labels:          map[string]string{"app.kubernetes.io/part-of": "lockstep"},
		},
		Data: map[string]string{key: string(raw)},
	}
	var err error
	if version == "" {
		cm, err = s.client.Create(ctx, cm, metav1.CreateOptions{})
	} else {
		cm, err = s.client.Update(ctx, cm, metav1.UpdateOptions{})
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("write configmap %s: %w: %w", name, ErrConflict, err)
	}
	if err != nil {
		return fmt.Errorf("write configmap %s: %w", name, err)
	}
	s.setVersion(name, cm.ResourceVersion)
	return nil
}

// Owner returns the source that declared an object and the spec hash that was
// accepted, and false where no source did.
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

// Changed returns a channel that is closed at the next change.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// notify wakes all who wait for a change; the caller holds the lock.
func (s *Store) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}
