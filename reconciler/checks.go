// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
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
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/health"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// checks gathers the facts that preconditions are judged by. It implements
// worker.Preconditions.
type checks struct {
	name      string
	engine    *apply.Engine
	store     *state.Store
	policy    func() *trust.Document
	live      *live.Cache
	reader    client.Reader
	cached    client.Reader
	discovery discovery.ServerVersionInterface
	now       func() time.Time
	// refused hears of each refusal, by its reason.
	refused func(reason string)

	mu   sync.Mutex
	spec v1alpha1.ClusterReleaseSpec
}

// setSpec says what the ClusterRelease asks for now.
func (c *checks) setSpec(spec *v1alpha1.ClusterReleaseSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spec = *spec.DeepCopy()
}

// permission identifies what spec.rollback allows; another reason, or another
// version, is another permission. It's "" where nothing is allowed.
func permission(spec *v1alpha1.ClusterReleaseSpec) string {
	if spec.Rollback == nil || spec.Rollback.To == "" {
		return ""
	}
	return spec.Rollback.To + "\n" + spec.Rollback.Reason
}

// rollbackTo is the version that spec.rollback names, "" once that was reached:
// a permission is good for one way back.
func (c *checks) rollbackTo() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := permission(&c.spec); p == "" || p == c.store.Release(c.name).SpentRollback {
		return ""
	}
	return c.spec.Rollback.To
}

// Check implements worker.Preconditions. Refusals are counted.
func (c *checks) Check(ctx context.Context, desired worker.Desired, target *payload.Payload, current worker.Current) ([]precondition.Violation, error) {
	violations, err := c.check(ctx, desired, target, current)
	if err != nil && ctx.Err() == nil {
		c.refused(reasonOf(err, "PreconditionChecks"))
	}
	c.count(violations)
	return violations, err
}

// count counts what holds the release back.
func (c *checks) count(violations []precondition.Violation) {
	for _, v := range violations {
		if v.Blocking && !v.Waived {
			c.refused(v.Reason)
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
			Name: "ClusterRelease/" + c.name, Reason: "ClusterReleaseOverrides", Message: fmt.Sprintf("%d objects are unmanaged", n),
		})
	}
	others, err := c.blockers(ctx, current.Accepted, target)
	if err != nil {
		return nil, err
	}
	f.Blockers = append(f.Blockers, others...)
	if err := c.cluster(ctx, f); err != nil {
		return nil, err
	}
	return precondition.Evaluate(f, desired.Waivers), nil
}

// checkHealthRules refuses a release with a rule that can't be evaluated before
// anything of it is applied; else it would show amid the update. Nobody asks
// after the health of objects that are left to people.
func checkHealthRules(target *payload.Payload, unmanaged map[payload.ObjectID]bool) error {
	for i := range target.Manifests {
		m := &target.Manifests[i]
		if m.Health == "" || unmanaged[m.ID] {
			continue
		}
		if err := health.Validate(m.Health); err != nil {
			return &reasonError{"InvalidHealthRule", false, fmt.Errorf("%s:%d: %s: annotation %s: %w", m.File, m.Line, m.ID, payload.AnnotationHealth, err)}
		}
	}
	return nil
}

// cluster reads what the checks want to know of the cluster.
func (c *checks) cluster(ctx context.Context, f *precondition.Facts) error {
	version, err := c.discovery.ServerVersion()
	if err != nil {
		return fmt.Errorf("version of the API server: %w", err)
	}
	f.APIServer = version.GitVersion
	var nodes corev1.NodeList
	if err := c.reader.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	f.Kubelets = map[string]string{}
	for i := range nodes.Items {
		f.Kubelets[nodes.Items[i].Name] = nodes.Items[i].Status.NodeInfo.KubeletVersion
	}
	f.Serves = func(gvk schema.GroupVersionKind) bool {
		_, err := c.live.Mapping(gvk)
		// An error of another kind says nothing against it.
		return err == nil || !live.IsNoMatch(err)
	}
	f.StoredVersions = map[string][]string{}
	for i := range f.Target.Manifests {
		m := &f.Target.Manifests[i]
		if !m.IsCRD() || f.Unmanaged[m.ID] {
			continue
		}
		if level, err := c.engine.InSync(ctx, m); err == nil && level {
			continue // Applying it changes nothing, and so drops no version.
		}
		var crd apiextensionsv1.CustomResourceDefinition
		err := c.reader.Get(ctx, client.ObjectKey{Name: m.ID.Name}, &crd)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read definition %s: %w", m.ID.Name, err)
		}
		f.StoredVersions[m.ID.Name] = crd.Status.StoredVersions
	}
	return nil
}
