// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// reasonNotUpgradeable is that of a ClusterOperator without one.
const reasonNotUpgradeable = "NotUpgradeable"

// maxBlockers limits the blockers of one kind.
const maxBlockers = 20

// blockers returns what blocks an upgrade, besides overrides: ClusterOperators of
// the payloads with Upgradeable=False, and halted pools. It reads from caches.
func (c *checks) blockers(ctx context.Context, payloads ...*payload.Payload) ([]precondition.Blocker, error) {
	out := c.operators(payloads)
	pools, err := haltedPools(ctx, c.cached)
	return append(out, pools...), err
}

// deleting describes the objects that are still being deleted, or returns "".
func (c *checks) deleting() string {
	dying := c.engine.Deleting()
	if len(dying) == 0 {
		return ""
	}
	return fmt.Sprintf("objects still being deleted: %d, including %s", len(dying), dying[0])
}

// operators returns the ClusterOperators of the payloads with Upgradeable=False.
func (c *checks) operators(payloads []*payload.Payload) []precondition.Blocker {
	var out []precondition.Blocker
	seen := map[payload.ObjectID]bool{}
	for _, p := range payloads {
		if p == nil {
			continue
		}
		for i := range p.Manifests {
			id := p.Manifests[i].ID
			if !id.IsClusterOperator() || seen[id] || len(out) == maxBlockers {
				continue
			}
			seen[id] = true
			if v := c.live.Get(id); v.State == live.Present && v.Object.Body != nil {
				out = append(out, notUpgradeable(v.Object.Body)...)
			}
		}
	}
	return out
}

// notUpgradeable returns a blocker if the condition Upgradeable of a
// ClusterOperator is False.
func notUpgradeable(operator *unstructured.Unstructured) []precondition.Blocker {
	status, _ := operator.Object["status"].(map[string]any)
	list, _ := status["conditions"].([]any)
	for _, entry := range list {
		c, _ := entry.(map[string]any)
		if c["type"] != v1alpha1.ConditionUpgradeable || c["status"] != "False" {
			continue
		}
		reason, _ := c["reason"].(string)
		message, _ := c["message"].(string)
		if reason == "" {
			reason = reasonNotUpgradeable
		}
		return []precondition.Blocker{{
			Name: "ClusterOperator/" + operator.GetName(), Reason: sanitize.Clip(reason, 64), Message: sanitize.Clip(message, 256),
		}}
	}
	return nil
}

// haltedPools returns the NodeOS objects whose rollout is halted.
func haltedPools(ctx context.Context, reader client.Reader) ([]precondition.Blocker, error) {
	var list v1alpha1.NodeOSList
	if err := reader.List(ctx, &list, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return nil, fmt.Errorf("list NodeOS objects: %w", err)
	}
	var out []precondition.Blocker
	for i := range list.Items {
		halted := meta.FindStatusCondition(list.Items[i].Status.Conditions, v1alpha1.ConditionHalted)
		if halted != nil && halted.Status == "True" && len(out) < maxBlockers {
			out = append(out, precondition.Blocker{
				Name: "NodeOS/" + list.Items[i].Name, Reason: halted.Reason, Message: sanitize.Clip(halted.Message, 256),
			})
		}
	}
	slices.SortFunc(out, func(a, b precondition.Blocker) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}
