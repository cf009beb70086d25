// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/version"
)

// Location of the ledger.
const (
	// Name is the name of the ConfigMap.
	Name = "lockstep-ledger"
	// Namespace is the namespace of the ConfigMap.
	Namespace = "lockstep-system"
	// Key is the key of the document in the ConfigMap's data.
	Key = "ledger.json"
)

// maxJump is how far above the stored epoch and the reports' median a reported
// epoch is accepted. Agents reject larger jumps too, so that one host's false
// report can't lock out the others.
const maxJump = 1000

// swapTries bounds the compare-and-swap loops.
const swapTries = 12

// ErrConflict means that the ledger changed since it was read: read it and plan
// again.
var ErrConflict = errors.New("the ledger changed since it was read")

// ErrSuperseded means that another leader has a newer fence: stop leading.
var ErrSuperseded = errors.New("another leader has a newer fence")

// ConfigMaps is the client for ConfigMaps of one namespace that Store needs.
// Reads must be served by the API server, not by a cache.
type ConfigMaps interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error)
	Create(ctx context.Context, cm *corev1.ConfigMap, opts metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, cm *corev1.ConfigMap, opts metav1.UpdateOptions) (*corev1.ConfigMap, error)
}

// Snapshot is the document that was read, with its resourceVersion.
type Snapshot struct {
	Document Document
	// Missing reports whether there was no ledger: it is new or was lost.
	Missing bool
	version string
}

// Store reads and replaces the ledger. It is safe for concurrent use and has no
// cache: each call is sent to the API server.
type Store struct{ maps ConfigMaps }

// NewStore returns a Store over the ConfigMaps of the namespace Namespace.
func NewStore(m ConfigMaps) *Store { return &Store{maps: m} }

// Load reads the ledger. If there is none, the snapshot is empty and Missing.
func (s *Store) Load(ctx context.Context) (Snapshot, error) {
	cm, err := s.maps.Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Snapshot{Missing: true}, nil
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("read the ledger %s/%s: %w", Namespace, Name, err)
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

// Swap replaces the ledger with to if it hasn't changed since from was read;
// otherwise it returns ErrConflict. It returns ErrSuperseded if to has an older
// fence than from.
func (s *Store) Swap(ctx context.Context, from Snapshot, to Document) (Snapshot, error) {
	if to.Fence.Epoch < from.Document.Fence.Epoch {
		return Snapshot{}, fmt.Errorf("write the ledger: %w: stored epoch %d, own epoch %d", ErrSuperseded, from.Document.Fence.Epoch, to.Fence.Epoch)
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
		return Snapshot{}, fmt.Errorf("write the ledger: %w: %w", ErrConflict, err)
	case err != nil:
		return Snapshot{}, fmt.Errorf("write the ledger %s/%s: %w", Namespace, Name, err)
	}
	to.Version = max(to.Version, Version)
	return Snapshot{Document: to, version: got.ResourceVersion}, nil
}

// Acquire stores and returns a fence whose epoch is one above the highest of the
// stored and the reported epochs. Call it each time that leadership starts, and
// again if an agent rejects an order because it has seen a higher epoch. The new
// epoch is stored before an order contains it.
//
// holder names the process; it must be unique per process start.
//
// A reported epoch far above the others is ignored: that host reports a false or
// damaged value, and only that host keeps rejecting orders.
func (s *Store) Acquire(ctx context.Context, clusterUID, holder string, reported []uint64) (Fence, error) {
	if clusterUID == "" {
		return Fence{}, errors.New("acquire the fence: the cluster UID (the UID of namespace kube-system) is required")
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
	return Fence{}, fmt.Errorf("acquire the fence: %w in %d tries", ErrConflict, swapTries)
}

// nextFence returns the fence to acquire.
func nextFence(stored Fence, clusterUID string, reported []uint64) (Fence, error) {
	if stored.ClusterUID != "" && stored.ClusterUID != clusterUID {
		return Fence{}, &FormatError{Problem: fmt.Sprintf(
			"the ledger belongs to cluster %s, this is cluster %s; run lockstep node fence reset",
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
		return Fence{}, &FormatError{Problem: "the fence's epochs are exhausted; run lockstep node fence reset"}
	}
	return Fence{ClusterUID: clusterUID, Epoch: highest + 1}, nil
}

// Reset replaces the stored fence, even one of another cluster or with a higher
// epoch. Agents keep the highest epoch that they have seen and must be reset
// too.
func (s *Store) Reset(ctx context.Context, clusterUID string, epoch uint64) (Fence, error) {
	fence := Fence{ClusterUID: clusterUID, Epoch: epoch}
	err := s.modify(ctx, func(d *Document) (bool, error) {
		changed := d.Fence != fence
		d.Fence = fence
		return changed, nil
	}, allowLower)
	return fence, err
}

// RaiseMark raises the high-water mark of a product to img; a version at or
// below the mark is ignored. Call it only after a release has completed or a
// pool has committed the version.
func (s *Store) RaiseMark(ctx context.Context, product string, img Image, now time.Time) error {
	v, err := version.Parse(img.Version)
	if err != nil {
		return fmt.Errorf("raise the mark of %s: version %q: %w", product, img.Version, err)
	}
	return s.modify(ctx, func(d *Document) (bool, error) {
		if old, ok := d.Marks[product]; ok {
			have, err := version.Parse(old.Version)
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

// fenceRule decides whether a modification may lower the fence.
type fenceRule bool

const (
	keepFence  fenceRule = false
	allowLower fenceRule = true
)

// modify applies change by compare-and-swap until it succeeds, change reports
// no change, or no tries are left.
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
	return fmt.Errorf("write the ledger: %w in %d tries", ErrConflict, swapTries)
}
