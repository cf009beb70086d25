// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The labels and annotations of KEP-3659. Other tools read them; we don't: a
// label that Kubernetes copies to children must never delete anything. The
// member's label has a use of its own, though: by it our manager holds at
// least one field of each object, and can be looked for before a deletion.
const (
	labelPartOf          = "applyset.kubernetes.io/part-of"
	labelApplySetID      = "applyset.kubernetes.io/id"
	annotationTooling    = "applyset.kubernetes.io/tooling"
	annotationKinds      = "applyset.kubernetes.io/contains-group-kinds"
	annotationNamespaces = "applyset.kubernetes.io/additional-namespaces"
	tooling              = "lockstep/v1"
	// maxAnnotation bounds what the parent says; a set that is in more
	// namespaces than fit says nothing of them.
	maxAnnotation = 64 << 10
)

// applySetID is the identity of the set whose parent is a ConfigMap.
func applySetID(name, namespace string) string {
	digest := sha256.Sum256([]byte(name + "." + namespace + ".ConfigMap."))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(digest[:]) + "-v1"
}

// member returns content with the label of a member. It shares all but the
// maps that it changes.
func member(content map[string]any, id string) map[string]any {
	out := maps.Clone(content)
	metadata, _ := content["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]any{}
	}
	labels, _, _ := unstructured.NestedMap(content, "metadata", "labels")
	if labels == nil {
		labels = map[string]any{}
	}
	labels[labelPartOf] = id
	metadata["labels"] = labels
	out["metadata"] = metadata
	return out
}

// parentAnnotations say what the set holds.
func parentAnnotations(entries []entry, own string) map[string]string {
	kinds, namespaces := map[string]bool{}, map[string]bool{}
	for i := range entries {
		kinds[schema.GroupKind{Group: entries[i].Group, Kind: entries[i].Kind}.String()] = true
		if ns := entries[i].Namespace; ns != "" && ns != own {
			namespaces[ns] = true
		}
	}
	out := map[string]string{annotationTooling: tooling}
	for key, set := range map[string]map[string]bool{annotationKinds: kinds, annotationNamespaces: namespaces} {
		if list := strings.Join(slices.Sorted(maps.Keys(set)), ","); len(list) <= maxAnnotation {
			out[key] = list
		}
	}
	return out
}
