// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/config/version"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// checks gathers the facts of preconditions. It implements worker.Preconditions.
type checks struct {
	name   string
	engine *apply.Engine
	store  *state.Store
	policy func() *trust.Document
	live   *live.Cache
	// reader reads from the API server, cached from the cache.
	reader, cached client.Reader
	version        discovery.ServerVersionInterface
	// clusterName returns the cluster's name in the declaring source, "" without
	// one; now is the time at which waivers are evaluated.
	clusterName func() string
	now         func() time.Time
	// rejected is called with the reason of each rejection.
	rejected func(reason string)

	mu   sync.Mutex
	spec v1alpha1.ClusterReleaseSpec
	// proposed is the release whose objects are claimed before it is accepted.
	proposed worker.Desired
}

// propose claims the objects of a verified release: from now on no other release
// deletes them.
func (c *checks) propose(desired worker.Desired, target *payload.Payload) {
	c.mu.Lock()
	c.proposed = desired
	c.mu.Unlock()
	c.engine.Propose(target.Manifests)
}

// withdraw ends the claims of a proposed release that is no longer desired.
func (c *checks) withdraw(desired worker.Desired) {
	c.mu.Lock()
	outdated := !c.proposed.Empty() && !c.proposed.Equal(desired)
	if outdated {
		c.proposed = worker.Desired{}
	}
	c.mu.Unlock()
	if outdated {
		c.engine.Propose(nil)
	}
}

// setSpec sets the current spec of the ClusterRelease.
func (c *checks) setSpec(spec *v1alpha1.ClusterReleaseSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spec = *spec.DeepCopy()
}

// rollbackTo returns the version that spec.rollback permits, "" once the permission
// is consumed.
func (c *checks) rollbackTo() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := rollbackPermission(&c.spec); p == "" || p == c.store.Release(c.name).SpentRollback {
		return ""
	}
	return c.spec.Rollback.To
}

// Check implements worker.Preconditions. It counts rejections.
func (c *checks) Check(ctx context.Context, desired worker.Desired, target *payload.Payload, current worker.Current) ([]precondition.Violation, error) {
	violations, err := c.check(ctx, desired, target, current)
	if err != nil && ctx.Err() == nil {
		c.rejected(control.ReasonOf(err, "PreconditionChecks"))
	}
	c.count(violations)
	return violations, err
}

// count counts the violations that block the release.
func (c *checks) count(violations []precondition.Violation) {
	for _, v := range violations {
		if v.Blocking && !v.Waived {
			c.rejected(v.Reason)
		}
	}
}

func (c *checks) check(ctx context.Context, desired worker.Desired, target *payload.Payload, current worker.Current) ([]precondition.Violation, error) {
	unmanaged := make(map[payload.ObjectID]bool, len(current.Overrides))
	for i := range current.Overrides {
		unmanaged[current.Overrides[i].ID] = true
	}
	if err := checkHealthRules(target, unmanaged); err != nil {
		return nil, err
	}
	if err := scopeError(c.engine.CheckScope(target.Manifests), unmanaged); err != nil {
		return nil, err
	}
	c.propose(desired, target)
	c.mu.Lock()
	spec := c.spec
	c.mu.Unlock()
	f := &precondition.Facts{Target: target, Unmanaged: unmanaged, Owners: c.engine.Others(target.Manifests)}
	f.Prunable, f.Managed = c.engine.Prunable()
	for _, done := range c.store.Release(c.name).Completed {
		f.Completed = append(f.Completed, done.Version)
	}
	if len(f.Completed) > 0 {
		f.Current = f.Completed[0]
	}
	if current.Accepted != nil {
		f.Applying = current.Accepted.Version
	}
	f.RollbackTo = c.rollbackTo()
	if doc := c.policy(); doc != nil {
		f.Floor = doc.Floors[target.Product]
	}
	policy := policyOf(&spec)
	f.Prune, f.MaxPruned = policy.prune, policy.maxPercent
	if n := len(current.Overrides); n > 0 {
		f.Blockers = append(f.Blockers, precondition.Blocker{
			Name: "ClusterRelease/" + c.name, Reason: "ClusterReleaseOverrides", Message: fmt.Sprintf("objects unmanaged by overrides: %d", n),
		})
	}
	others, err := c.blockers(ctx, current.Accepted, target)
	if err != nil {
		return nil, err
	}
	f.Blockers = append(f.Blockers, others...)
	f.Deleting = c.deleting()
	if err := c.addClusterFacts(ctx, f); err != nil {
		return nil, err
	}
	if f.Order, err = c.order(ctx, f); err != nil {
		return nil, err
	}
	return c.waive(&spec, desired, target, current, precondition.Evaluate(f)), nil
}

// order returns the pairs of manifests whose order can't work in the cluster.
func (c *checks) order(ctx context.Context, f *precondition.Facts) (lines []string, err error) {
	state := payload.Updating
	switch {
	case f.Current == "":
		state = payload.Initializing
	case version.IsRollback(f.Current, f.Target.Version):
		state = payload.RollingBack
	}
	managed := slices.DeleteFunc(slices.Clone(f.Target.Manifests), func(m payload.Manifest) bool { return f.Unmanaged[m.ID] })
	exists := func(m *payload.Manifest) bool {
		if err != nil {
			return true
		}
		var ok bool
		ok, err = c.engine.Exists(ctx, m)
		return ok
	}
	for _, p := range taskgraph.CheckOrder(managed, state, f.Target.CVO, exists) {
		lines = append(lines, p.Message)
	}
	if err != nil {
		return nil, fmt.Errorf("check the order of the manifests: %w", err)
	}
	return lines, nil
}

// checkHealthRules rejects a release with an invalid health rule before anything is
// applied. Rules of unmanaged objects aren't used.
func checkHealthRules(target *payload.Payload, unmanaged map[payload.ObjectID]bool) error {
	for i := range target.Manifests {
		m := &target.Manifests[i]
		if m.Health == "" || unmanaged[m.ID] {
			continue
		}
		if err := health.Validate(m.Health); err != nil {
			return control.NewError("InvalidHealthRule", false, fmt.Errorf("%s:%d: %s: annotation %s: %w", m.File, m.Line, m.ID, payload.AnnotationHealth, err))
		}
	}
	return nil
}

// scopeError rejects a release with objects that can't exist, before anything is
// recorded: a first install has no dry run. Unmanaged objects aren't applied.
func scopeError(problems []apply.Problem, unmanaged map[payload.ObjectID]bool) error {
	var all payload.Problems
	for _, p := range problems {
		if !unmanaged[p.ID] {
			all.Add(p.Err)
		}
	}
	return all.Err()
}

// addClusterFacts reads the facts about the cluster.
func (c *checks) addClusterFacts(ctx context.Context, f *precondition.Facts) error {
	version, err := c.version.ServerVersion()
	if err != nil {
		return fmt.Errorf("read version of the API server: %w", err)
	}
	f.APIServer = version.GitVersion
	var nodes corev1.NodeList
	if err := c.reader.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	f.Kubelets = map[string]string{}
	for i := range nodes.Items {
		f.Kubelets[nodes.Items[i].Name] = nodes.Items[i].Status.NodeInfo.KubeletVersion
	}
	f.Serves = func(gvk schema.GroupVersionKind) bool {
		_, err := c.live.Mapping(gvk)
		// Other errors are transient.
		return err == nil || !live.IsNoMatch(err)
	}
	f.StoredVersions = map[string][]string{}
	for i := range f.Target.Manifests {
		m := &f.Target.Manifests[i]
		if !m.IsCRD() || f.Unmanaged[m.ID] {
			continue
		}
		if inSync, err := c.engine.InSync(ctx, m); err == nil && inSync {
			continue // applying it changes nothing and removes no version
		}
		var crd apiextensionsv1.CustomResourceDefinition
		err := c.reader.Get(ctx, client.ObjectKey{Name: m.ID.Name}, &crd)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read CustomResourceDefinition %s: %w", m.ID.Name, err)
		}
		f.StoredVersions[m.ID.Name] = crd.Status.StoredVersions
	}
	return nil
}
