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

// maxErrors bounds the errors that one Sync returns.
const maxErrors = 10

// Fleet is the set of connections to agents that a Syncer needs.
type Fleet interface {
	SetTargets(targets []fleet.Target)
	State(hostID string) (fleet.State, bool)
}

// Config configures a Syncer; all fields are required.
type Config struct {
	// Client reads Nodes and Hosts, possibly from a cache, and writes Hosts.
	Client client.Client
	// Namespace is the namespace of Lockstep's objects.
	Namespace string
	Fleet     Fleet
	Now       func() time.Time
}

// Syncer manages the Host objects. Calls of Sync must not overlap; SetRollouts
// is safe for concurrent use.
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

// SetRollouts sets the states of a pool's hosts in flight, by host name; nil
// removes the pool.
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

// Sync creates and deletes Host objects, sets the fleet's targets and writes
// changed statuses. pools are the selectors of all NodeOS objects. It returns
// after what delay it must be called again for statuses that aren't due yet; 0
// if none.
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

// updateMissing updates and returns since when Hosts have had no Node. A restart
// resets the times, so a Host may be kept longer.
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
	if apierrors.IsAlreadyExists(err) { // the cache is outdated
		return nil, nil //nolint:nilnil // not an error; the next Sync reads it
	}
	if err != nil {
		return nil, fmt.Errorf("create Host %s: %w", name, err)
	}
	return host, nil
}

// remove deletes a Host unless it changed since it was read.
func (s *Syncer) remove(ctx context.Context, h *v1alpha1.Host) error {
	err := s.cfg.Client.Delete(ctx, h, client.Preconditions{UID: &h.UID, ResourceVersion: &h.ResourceVersion})
	if client.IgnoreNotFound(err) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.written, h.Name)
		return nil
	}
	if apierrors.IsConflict(err) {
		return nil // the next Sync reads the changed Host
	}
	return fmt.Errorf("delete Host %s: %w", h.Name, err)
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

// write patches a status if it is due and returns after what delay to retry; 0
// if none.
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
		return 0, fmt.Errorf("write the status of Host %s: %w", h.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[h.Name] = now
	return 0, nil
}
