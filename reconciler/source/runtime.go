// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/sources/desired"
)

// runtimes holds the runtime of each GitSource. It is safe for concurrent use.
type runtimes struct {
	control.Group
	stateDir      string
	outbound      outbound.Settings
	allowInsecure bool
	store         *state.Store
	secrets       typedcorev1.SecretInterface
	log           logr.Logger
	now           func() time.Time

	// releases and pools are fired when the accepted state of a source changes,
	// and while one is being applied.
	releases, pools control.Trigger
	// edits is fired when the directory of a source changes.
	edits control.Trigger

	mu     sync.Mutex
	byName map[string]*runtime
	// opened counts the runtimes that were opened.
	opened int
}

// runtime is the runtime state of one GitSource. The lock of runtimes guards its
// fields; the reader is safe for concurrent use.
type runtime struct {
	name   string
	spec   v1alpha1.GitSourceSpec
	reader reader
	// serial distinguishes the runtimes of one source.
	serial int
	// failures counts failed reconciliations since the last success.
	failures int
	// state is the accepted state, nil until this process decoded it. pending is
	// the state that is being applied.
	state, pending *desired.State
	// applied are the hashes of the last applied manifests, by "Kind/name".
	applied map[string]string
}

func newRuntimes(cfg Config) *runtimes {
	return &runtimes{
		stateDir: cfg.StateDir, outbound: cfg.Outbound, allowInsecure: cfg.AllowInsecure, store: cfg.Base.Store, secrets: cfg.Secrets,
		log: cfg.Base.Log, now: cfg.Base.Now, releases: cfg.Releases, pools: cfg.Pools,
		edits: control.NewTrigger(16), byName: map[string]*runtime{},
	}
}

// Start implements manager.Runnable: directory watches run until ctx ends.
func (s *runtimes) Start(ctx context.Context) error {
	s.Run(ctx)
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*runtimes) NeedLeaderElection() bool { return true }

// get returns the runtime of a GitSource. It opens the source again when the part
// of the spec that its reader depends on has changed. Only the controller calls it,
// once at a time per source.
func (s *runtimes) get(obj *v1alpha1.GitSource) (*runtime, error) {
	s.mu.Lock()
	rt := s.byName[obj.Name]
	if rt != nil && equality.Semantic.DeepEqual(readerSpec(&rt.spec), readerSpec(&obj.Spec)) {
		rt.spec = *obj.Spec.DeepCopy()
		s.mu.Unlock()
		return rt, nil
	}
	s.mu.Unlock()
	source, err := s.open(obj)
	if err != nil {
		return nil, err
	}
	next := &runtime{name: obj.Name, spec: *obj.Spec.DeepCopy(), reader: source, applied: map[string]string{}}
	if rt != nil {
		next.state, next.applied = rt.state, rt.applied
	}
	// Both use the same mirror: close the old reader first.
	if err := s.drop(obj.Name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.opened++
	next.serial = s.opened
	s.byName[obj.Name] = next
	s.mu.Unlock()
	// Releases may wait for a payload path of this source.
	s.releases.Fire("")
	return next, nil
}

// readerSpec returns the part of a spec that the reader depends on.
func readerSpec(spec *v1alpha1.GitSourceSpec) v1alpha1.GitSourceSpec {
	part := *spec
	part.Interval, part.Prune, part.Suspend, part.WriteBack, part.Cluster = v1alpha1.GitSourceSpec{}.Interval, nil, false, nil, ""
	return part
}

// drop removes the runtime of a source that was deleted or is opened again, and
// waits for the calls that use its mirror. Its declared objects are reconciled as
// last accepted.
func (s *runtimes) drop(name string) error {
	s.mu.Lock()
	rt := s.byName[name]
	delete(s.byName, name)
	s.mu.Unlock()
	if rt == nil {
		return nil
	}
	return rt.reader.Close()
}

// update changes a runtime under the lock and fires the triggers.
func (s *runtimes) update(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	s.releases.Fire("")
	s.pools.Fire("")
}

// countFailure returns the number of failed reconciliations of a source since the
// last success, this one included.
func (s *runtimes) countFailure(name string, failed bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	rt := s.byName[name]
	if rt == nil {
		return 1
	}
	if rt.failures++; !failed {
		rt.failures = 0
	}
	return rt.failures
}
