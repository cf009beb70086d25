// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Where the ledger lives.
const (
	// Name is that of the ConfigMap.
	Name = "lockstep-ledger"
	// Namespace is that of the ConfigMap.
	Namespace = "lockstep-system"
	// Key is the entry of the ConfigMap that holds the document.
	Key = "ledger.json"
)

// maxJump is how far above the known epoch a reported one is believed; agents
// refuse a larger jump too, so that one liar can't lock out the others.
const maxJump = 1000

// swapTries bounds the compare-and-swap loops of this package.
const swapTries = 12

// ErrConflict says that the ledger changed since it was read: read and decide
// again.
var ErrConflict = errors.New("ledger: changed since it was read")

// ErrSuperseded says that another leader holds a newer fence: stop acting.
var ErrSuperseded = errors.New("ledger: another leader holds a newer fence")

// ConfigMaps is what Store needs of a typed client for the namespace's
// ConfigMaps. Reads must come from the API server, never from a cache.
type ConfigMaps interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error)
	Create(ctx context.Context, cm *corev1.ConfigMap, opts metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, cm *corev1.ConfigMap, opts metav1.UpdateOptions) (*corev1.ConfigMap, error)
}

// Snapshot is the document as it was read, with what's needed to replace it.
type Snapshot struct {
	Document Document
	// Missing says that there was no ledger: it's new, or it was lost.
	Missing bool
	version string
}

// Store reads and replaces the ledger. It's safe for concurrent use and keeps
// no state: each call goes to the API server.
type Store struct{ maps ConfigMaps }

// NewStore returns a Store over the ConfigMaps of the namespace Namespace.
func NewStore(m ConfigMaps) *Store { return &Store{maps: m} }

// Load reads the ledger; where there is none, the snapshot is empty and says so.
func (s *Store) Load(ctx context.Context) (Snapshot, error) {
	cm, err := s.maps.Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Snapshot{Missing: true}, nil
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("ledger: read %s/%s: %w", Namespace, Name, err)
	}
	snap := Snapshot{version: cm.ResourceVersion}
	raw, ok := cm.Data[Key]
	if !ok {
		snap.Missing = true
		return snap, nil
	}
	snap.Document, err = Decode([]byte(raw))
	return snap, err
}

// Swap replaces the ledger by to if it is still what from says; else the error
// is ErrConflict and nothing has changed.
func (s *Store) Swap(ctx context.Context, from Snapshot, to Document) (Snapshot, error) {
	if to.Fence.Epoch < from.Document.Fence.Epoch {
		return Snapshot{}, fmt.Errorf("%w: epoch %d is written, ours is %d", ErrSuperseded, from.Document.Fence.Epoch, to.Fence.Epoch)
	}
	raw, err := Encode(to)
	if err != nil {
		return Snapshot{}, err
	}
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name, Namespace: Namespace, ResourceVersion: from.version,
			Labels: map[string]string{"app.kubernetes.io/managed-by": "lockstep"},
		},
		Data: map[string]string{Key: string(raw)},
	}
	write := func() (*corev1.ConfigMap, error) {
		if from.version == "" {
			return s.maps.Create(ctx, cm, metav1.CreateOptions{FieldManager: "lockstep-rollout"})
		}
		return s.maps.Update(ctx, cm, metav1.UpdateOptions{FieldManager: "lockstep-rollout"})
	}
	got, err := write()
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && from.version != "":
		return Snapshot{}, fmt.Errorf("%w: %w", ErrConflict, err)
	case err != nil:
		return Snapshot{}, fmt.Errorf("ledger: write %s/%s: %w", Namespace, Name, err)
	}
	to.Version = max(to.Version, Version)
	return Snapshot{Document: to, version: got.ResourceVersion}, nil
}

// Acquire raises the fence above everything known and returns it: one above
// the highest of what is stored and what agents have reported. It's called at
// each start of leading, also by the same process, and again when an agent
// refuses an order because it has seen a higher epoch; the API server has the
// new epoch before the first order carries it.
//
// Holder names the process that acquires it, unique to the process's life.
//
// A report far above what the others say is ignored: that host is a liar, or
// its disk is damaged, and it alone goes on refusing.
func (s *Store) Acquire(ctx context.Context, clusterUID, holder string, reported []uint64) (Fence, error) {
	if clusterUID == "" {
		return Fence{}, errors.New("ledger: a fence needs the cluster's UID (that of the namespace kube-system)")
	}
	for range swapTries {
		snap, err := s.Load(ctx)
		if err != nil {
			return Fence{}, err
		}
		next, err := nextFence(snap.Document.Fence, clusterUID, reported)
		if err != nil {
			return Fence{}, err
		}
		doc := snap.Document.Clone()
		next.Holder = holder
		doc.Fence = next
		_, err = s.Swap(ctx, snap, doc)
		switch {
		case errors.Is(err, ErrConflict):
			continue
		case err != nil:
			return Fence{}, err
		}
		return next, nil
	}
	return Fence{}, fmt.Errorf("ledger: raise the fence: %d tries, each time another writer was first: %w", swapTries, ErrConflict)
}

// nextFence decides which fence follows.
func nextFence(stored Fence, clusterUID string, reported []uint64) (Fence, error) {
	if stored.ClusterUID != "" && stored.ClusterUID != clusterUID {
		return Fence{}, &FormatError{Problem: fmt.Sprintf(
			"it belongs to cluster %s, this is cluster %s (restored elsewhere?); run: lockstep node fence reset",
			stored.ClusterUID, clusterUID)}
	}
	base := stored.Epoch
	if n := len(reported); n > 0 {
		sorted := slices.Sorted(slices.Values(reported))
		base = max(base, sorted[(n-1)/2])
	}
	highest := base
	for _, r := range reported {
		if r > highest && r-base <= maxJump {
			highest = r
		}
	}
	if highest+1 < highest {
		return Fence{}, &FormatError{Problem: "the fence is exhausted; run: lockstep node fence reset"}
	}
	return Fence{ClusterUID: clusterUID, Epoch: highest + 1}, nil
}

// Reset starts the fence anew for a cluster, at epoch, whatever is stored. It's
// the administrator's way out (lockstep node fence reset); agents must be told
// as well.
func (s *Store) Reset(ctx context.Context, clusterUID string, epoch uint64) (Fence, error) {
	fence := Fence{ClusterUID: clusterUID, Epoch: epoch}
	err := s.modify(ctx, func(d *Document) (bool, error) {
		changed := d.Fence != fence
		d.Fence = fence
		return changed, nil
	}, allowLower)
	return fence, err
}

// RaiseMark lifts the high-water mark of a product to img; a version at or
// below the mark changes nothing. It's called when a release has completed or
// a host has committed, never earlier.
func (s *Store) RaiseMark(ctx context.Context, product string, img Image, now time.Time) error {
	v, err := semver.ParseTolerant(img.Version)
	if err != nil {
		return fmt.Errorf("ledger: mark of %s: version %q: %w", product, img.Version, err)
	}
	return s.modify(ctx, func(d *Document) (bool, error) {
		if old, ok := d.Marks[product]; ok {
			have, err := semver.ParseTolerant(old.Version)
			if err == nil && v.LTE(have) {
				return false, nil
			}
		}
		d.setMark(product, Mark{Image: img, At: now})
		return true, nil
	}, keepFence)
}

func (d *Document) setMark(product string, m Mark) {
	if d.Marks == nil {
		d.Marks = map[string]Mark{}
	}
	d.Marks[product] = m
}

// fenceRule says whether a modification may lower the fence.
type fenceRule bool

const (
	keepFence  fenceRule = false
	allowLower fenceRule = true
)

// modify applies change by compare-and-swap until it took, said that nothing
// is to do, or tries ran out.
func (s *Store) modify(ctx context.Context, change func(*Document) (bool, error), rule fenceRule) error {
	for range swapTries {
		snap, err := s.Load(ctx)
		if err != nil {
			return err
		}
		doc := snap.Document.Clone()
		changed, err := change(&doc)
		if err != nil || !changed {
			return err
		}
		if rule == allowLower {
			snap.Document.Fence = Fence{}
		}
		if _, err = s.Swap(ctx, snap, doc); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: %d tries", ErrConflict, swapTries)
}
