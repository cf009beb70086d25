// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// desiredOf returns the desired release of a spec at a revision of its source.
func desiredOf(spec *v1alpha1.ClusterReleaseSpec, revision string) worker.Desired {
	d := spec.Desired
	return worker.Desired{
		Identity:   payload.IdentityOf(d),
		Signatures: d.Signatures, Revision: revision, Selection: selectionOf(spec), Waivers: waiverDigests(spec),
	}
}

// waiverDigests returns the digests of the waivers in a spec.
func waiverDigests(spec *v1alpha1.ClusterReleaseSpec) []string {
	var out []string
	for _, w := range spec.Waivers {
		out = append(out, trust.DigestOf([]byte(w.Envelope)).String())
	}
	return out
}

// defaultMaxPruned is the default of spec.prune.maxPercent.
const defaultMaxPruned = 20

// policyOf returns the apply policy of a spec.
func policyOf(spec *v1alpha1.ClusterReleaseSpec) buildPolicy {
	p := buildPolicy{
		adopt: spec.Adopt, timeout: spec.Timeout.Duration, components: map[string]componentPolicy{}, prune: true, maxPercent: defaultMaxPruned,
	}
	for _, c := range spec.Components {
		policy := componentPolicy{warn: c.OnUnhealthy == "warn"}
		if c.Timeout != nil {
			policy.timeout = c.Timeout.Duration
		}
		p.components[c.Name] = policy
	}
	if spec.Prune != nil {
		p.prune = spec.Prune.Enabled == nil || *spec.Prune.Enabled
		if spec.Prune.MaxPercent != nil {
			p.maxPercent = int(*spec.Prune.MaxPercent)
		}
	}
	return p
}

// selectionOf returns which manifests of a payload the spec selects.
func selectionOf(spec *v1alpha1.ClusterReleaseSpec) payload.Selection {
	s := payload.Selection{
		Profile: spec.Profile, FeatureSet: spec.FeatureSet, FeatureGates: spec.FeatureGates,
		EvaluateGates: len(spec.FeatureGates) > 0, Baseline: payload.BaselineAll,
	}
	if c := spec.Capabilities; c != nil {
		if c.Baseline != "" {
			s.Baseline = c.Baseline
		}
		s.Capabilities = c.Additional
	}
	return s
}

// overridesOf returns the active overrides: unmanaged and not expired.
func overridesOf(spec *v1alpha1.ClusterReleaseSpec, now time.Time) []worker.Override {
	var out []worker.Override
	for _, o := range spec.Overrides {
		if !o.Unmanaged || o.Expires != nil && !now.Before(o.Expires.Time) {
			continue
		}
		out = append(out, worker.Override{
			ID:     payload.ObjectID{Group: o.Group, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name},
			Reason: o.Reason,
		})
	}
	slices.SortFunc(out, func(a, b worker.Override) int { return a.ID.Compare(b.ID) })
	return out
}

// unmanagedObjects returns the objects of the active overrides.
func unmanagedObjects(spec *v1alpha1.ClusterReleaseSpec, now time.Time) []state.Object {
	var out []state.Object
	for _, o := range overridesOf(spec, now) {
		out = append(out, state.Object(o.ID))
	}
	return out
}

// nextExpiry returns the time until the next override expires; zero if none does.
func nextExpiry(spec *v1alpha1.ClusterReleaseSpec, now time.Time) time.Duration {
	var next time.Duration
	for _, o := range spec.Overrides {
		if !o.Unmanaged || o.Expires == nil {
			continue
		}
		if left := o.Expires.Sub(now); left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	return next
}

// rollbackPermission identifies the permission in spec.rollback, "" if there is
// none. Another version or reason is another permission.
func rollbackPermission(spec *v1alpha1.ClusterReleaseSpec) string {
	if spec.Rollback == nil || spec.Rollback.To == "" {
		return ""
	}
	return spec.Rollback.To + "\n" + spec.Rollback.Reason
}
