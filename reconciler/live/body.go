// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// NeedsBody reports whether the readiness of the manifest's object depends on
// more than metadata: for kinds with a status contract, custom resources, and
// manifests with a health expression.
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

// ending is how a Job ended.
type ending int

const (
	running ending = iota
	completed
	failed
)

// endingOf returns how the Job body ended. All other kinds are running.
func endingOf(gk schema.GroupKind, body *unstructured.Unstructured) ending {
	switch {
	case body == nil || gk != kinds.Job:
		return running
	case HasCondition(body, "Complete"):
		return completed
	case FailedWithTTL(body):
		return failed
	default:
		return running
	}
}

// FailedWithTTL reports whether body is a failed Job with
// ttlSecondsAfterFinished. Without it, a failed Job stays until a user deletes it
// to run it again.
func FailedWithTTL(body *unstructured.Unstructured) bool {
	_, limited, _ := unstructured.NestedFieldNoCopy(body.Object, "spec", "ttlSecondsAfterFinished")
	return limited && HasCondition(body, "Failed")
}

// HasCondition reports whether the object's condition of this type is True.
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

// observe updates the mapper if the object is a CRD; body is nil if it was
// deleted.
func (c *Cache) observe(gk schema.GroupKind, name string, body *unstructured.Unstructured) {
	if gk == kinds.CustomResourceDefinition {
		c.mapper.observeCRD(name, body)
	}
}
