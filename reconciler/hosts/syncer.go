// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
)

// maxErrors is how many errors of one pass are reported.
const maxErrors = 10

// Fleet is what a Syncer needs of the connections to agents.
type Fleet interface {
	SetTargets(targets []fleet.Target)
	State(hostID string) (fleet.State, bool)
}

// Config makes a Syncer; all is needed.
type Config struct {
	// Client reads (from a cache, where it has one) and writes Hosts.
	Client client.Client
	// Namespace is that of our objects.
	Namespace string
	Fleet     Fleet
	Now       func() time.Time
}

// Syncer keeps the Host objects. Calls of Sync must not overlap; Rollouts may
// be called at any time.
type Syncer struct {
	cfg Config

	mu           sync.Mutex
	rollouts     map[string]map[string]v1alpha1.HostRollout // by pool, by host
	written      map[string]time.Time                       // by host
	missingSince map[string]time.Time                       // since when a host has no Node
}

// NewSyncer returns a Syncer.
func NewSyncer(c Config) *Syncer {
	return &Syncer{cfg: c, rollouts: map[string]map[string]v1alpha1.HostRollout{}, written: map[string]time.Time{}, missingSince: map[string]time.Time{}}
}

// SetRollouts says where a pool's rollout has its hosts: the States of a plan's
// status. Nil forgets the pool.
func (s *Syncer) SetRollouts(pool string, states map[string]v1alpha1.HostRollout) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if states == nil {
		delete(s.rollouts, pool)
		return
	}
	s.rollouts[pool] = states
}

func (s *Syncer) rollout(host string) *v1alpha1.HostRollout {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, states := range s.rollouts {
		if r, ok := states[host]; ok {
			return &r
		}
	}
	return nil
}

// Sync makes and removes Host objects, tells the fleet whom to dial, and
// writes the statuses that changed. It returns when the next call is due for
// statuses that were too early; zero: when something changes. pools are the
// selectors of all NodeOS.
func (s *Syncer) Sync(ctx context.Context, pools []labels.Selector) (time.Duration, error) {
	var (
		nodes corev1.NodeList
		hosts v1alpha1.HostList
	)
	if err := s.cfg.Client.List(ctx, &nodes); err != nil {
		return 0, fmt.Errorf("list the nodes: %w", err)
	}
	if err := s.cfg.Client.List(ctx, &hosts, client.InNamespace(s.cfg.Namespace)); err != nil {
		return 0, fmt.Errorf("list the hosts: %w", err)
	}
	var failed []error
	note := func(err error) {
		if err != nil && len(failed) < maxErrors {
			failed = append(failed, err)
		}
	}
	now := s.cfg.Now()
	changes := Plan(nodes.Items, pools, hosts.Items, s.updateMissing(hosts.Items, nodes.Items, now), now)
	for _, name := range changes.Create {
		host, err := s.create(ctx, name)
		note(err)
		if host != nil {
			hosts.Items = append(hosts.Items, *host)
		}
	}
	for i := range changes.Delete {
		note(s.remove(ctx, &changes.Delete[i]))
	}
	s.cfg.Fleet.SetTargets(Targets(hosts.Items, nodes.Items))
	again, err := s.statuses(ctx, hosts.Items, nodes.Items, now)
	note(err)
	return again, errors.Join(failed...)
}

// missing notes since when hosts have no Node. A restart begins anew: a Host
// is rather kept too long.
func (s *Syncer) updateMissing(hosts []v1alpha1.Host, nodes []corev1.Node, now time.Time) map[string]time.Time {
	alive := make(map[string]bool, len(nodes))
	for i := range nodes {
		alive[nodes[i].Name] = true
	}
	next := map[string]time.Time{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range hosts {
		name := hosts[i].Name
		if alive[name] {
			continue
		}
		next[name] = now
		if since, ok := s.missingSince[name]; ok {
			next[name] = since
		}
	}
	s.missingSince = next
	return next
}

func (s *Syncer) create(ctx context.Context, name string) (*v1alpha1.Host, error) {
	host := newHost(s.cfg.Namespace, name)
	err := s.cfg.Client.Create(ctx, host)
	if apierrors.IsAlreadyExists(err) { // the cache lags behind
		return nil, nil //nolint:nilnil // there's no error, and the next pass sees it
	}
	if err != nil {
		return nil, fmt.Errorf("make host %s: %w", name, err)
	}
	return host, nil
}

// remove deletes the very Host that was looked at, as it was.
func (s *Syncer) remove(ctx context.Context, h *v1alpha1.Host) error {
	err := s.cfg.Client.Delete(ctx, h, client.Preconditions{UID: &h.UID, ResourceVersion: &h.ResourceVersion})
	if client.IgnoreNotFound(err) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.written, h.Name)
		return nil
	}
	if apierrors.IsConflict(err) {
		return nil // somebody touched it: look again
	}
	return fmt.Errorf("remove host %s: %w", h.Name, err)
}

func (s *Syncer) statuses(ctx context.Context, hosts []v1alpha1.Host, nodes []corev1.Node, now time.Time) (time.Duration, error) {
	byName := make(map[string]*corev1.Node, len(nodes))
	for i := range nodes {
		byName[nodes[i].Name] = &nodes[i]
	}
	var (
		again  time.Duration
		failed []error
	)
	for i := range hosts {
		h := &hosts[i]
		f := Facts{Node: byName[h.Name], Rollout: s.rollout(h.Name)}
		if h.Spec.Identity != nil {
			if state, ok := s.cfg.Fleet.State(h.Spec.Identity.HostID); ok {
				f.State = &state
			}
		}
		wait, err := s.write(ctx, h, Status(h, f, now), now)
		if err != nil && len(failed) < maxErrors {
			failed = append(failed, err)
		}
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	return again, errors.Join(failed...)
}

// write updates a status if it's due; a conflict waits for the next pass.
func (s *Syncer) write(ctx context.Context, h *v1alpha1.Host, next v1alpha1.HostStatus, now time.Time) (time.Duration, error) {
	s.mu.Lock()
	last := s.written[h.Name]
	s.mu.Unlock()
	due, wait := Due(h.Status, next, last, now)
	if !due {
		return wait, nil
	}
	updated := h.DeepCopy()
	updated.Status = next
	err := s.cfg.Client.Status().Patch(ctx, updated, client.MergeFromWithOptions(h, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err):
		return time.Second, nil
	case client.IgnoreNotFound(err) != nil:
		return 0, fmt.Errorf("write the status of host %s: %w", h.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[h.Name] = now
	return 0, nil
}
