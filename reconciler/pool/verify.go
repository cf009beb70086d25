// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/state"
)

const (
	// retryUnverified is the interval at which a rejected image is verified again.
	retryUnverified = 30 * time.Second
	// verifyTimeout limits one verification: hosts in flight wait for it.
	verifyTimeout = 15 * time.Second
)

// osVerifier verifies OS images once per image and trust policy. A rejected image
// is verified again after retryUnverified, since a signature may be added. It is
// safe for concurrent use.
type osVerifier struct {
	registry verify.Registry
	store    *state.Store
	now      func() time.Time

	mu   sync.Mutex
	last map[string]verdict // by name of the NodeOS
}

// verdict is the result of a verification.
type verdict struct {
	// key identifies image, origin and policy.
	key     string
	image   string
	product string
	err     error
	at      time.Time
}

func newOSVerifier(registry verify.Registry, store *state.Store, now func() time.Time) *osVerifier {
	return &osVerifier{registry: registry, store: store, now: now, last: map[string]verdict{}}
}

// verify verifies the OS image of a NodeOS that the origin declares.
func (v *osVerifier) verify(ctx context.Context, obj *v1alpha1.NodeOS, from control.Origin) verdict {
	now := v.now()
	var doc *trust.Document
	policy := ""
	if current, ok := v.store.Trust(now); ok {
		doc, policy = current.Document, current.Document.Digest().String()
	}
	key := strings.Join([]string{obj.Spec.OS.Image, obj.Spec.OS.Version, from.URL, from.Cluster, policy}, "\n")
	v.mu.Lock()
	last, known := v.last[obj.Name]
	v.mu.Unlock()
	if known && last.key == key && (last.err == nil || now.Sub(last.at) < retryUnverified) {
		return last
	}
	next := verdict{key: key, image: obj.Spec.OS.Image, at: now}
	if last.image == next.image {
		// A later rejection doesn't change the product; orders to hosts in flight
		// name it.
		next.product = last.product
	}
	verifier, err := verify.New(verify.Config{
		Registry: v.registry, Policy: func() *trust.Document { return doc }, Cluster: from.Cluster, Now: v.now,
	})
	if err == nil {
		var signed verify.Signed
		limited, cancel := context.WithTimeout(ctx, verifyTimeout)
		defer cancel()
		// A rollback to a committed image is permitted after its policy expired.
		signed, err = verifier.OS(limited, verify.Request{
			Name: obj.Name, Source: from.URL, Image: obj.Spec.OS.Image, Version: obj.Spec.OS.Version, PreviouslyAccepted: committed(obj),
		})
		if err == nil {
			next.product = signed.Product()
		}
	}
	next.err = err
	if ctx.Err() != nil {
		return next
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last[obj.Name] = next
	return next
}

// delete removes the result of a deleted NodeOS.
func (v *osVerifier) delete(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.last, name)
}

// committed reports whether the pool's hosts have committed the image before.
func committed(obj *v1alpha1.NodeOS) bool {
	c := obj.Status.Committed
	return c != nil && c.Image == obj.Spec.OS.Image
}
