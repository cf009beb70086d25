// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// NeedsBody reports whether the manifest's levelness is read from more than
// metadata: kinds with a status contract, custom resources, and objects with
// a health rule.
func NeedsBody(m *payload.Manifest) bool {
	if m.Health != "" {
		return true
	}
	if m.GVK.GroupKind() == kinds.Service {
		kind, _, _ := unstructured.NestedString(m.Object.Object, "spec", "type")
		return kind == "LoadBalancer"
	}
	return kinds.Of(m.GVK.GroupKind()).Body
}

// ending is how a Job came to its end.
type ending int

const (
	running ending = iota
	completed
	failed
)

// end is how one Job came to its end.
type end struct {
	uid types.UID
	how ending
}

// endingOf says how body, a Job, came to its end. Any other kind runs for ever.
func endingOf(gk schema.GroupKind, body *unstructured.Unstructured) ending {
	switch {
	case body == nil || gk != kinds.Job:
		return running
	case HasCondition(body, "Complete"):
		return completed
	case FailedForGood(body):
		return failed
	default:
		return running
	}
}

// FailedForGood reports whether body is a Job that failed and that its TTL
// removes. Without a TTL it stays until somebody deletes it, which asks for
// another run.
func FailedForGood(body *unstructured.Unstructured) bool {
	_, limited, _ := unstructured.NestedFieldNoCopy(body.Object, "spec", "ttlSecondsAfterFinished")
	return limited && HasCondition(body, "Failed")
}

// HasCondition reports whether the condition is True.
func HasCondition(obj *unstructured.Unstructured, name string) bool {
	field, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "status", "conditions")
	conditions, _ := field.([]any)
	for _, c := range conditions {
		if entry, ok := c.(map[string]any); ok && entry["type"] == name {
			return entry["status"] == "True"
		}
	}
	return false
}

// observed reacts to changes of kinds that change what we know of others.
func (c *Cache) observed(gk schema.GroupKind, name string, body *unstructured.Unstructured) {
	if gk == kinds.CustomResourceDefinition {
		c.mapper.define(name, body)
	}
}
