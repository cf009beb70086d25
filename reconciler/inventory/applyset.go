// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The labels and annotations of KEP-3659, for other tools. Lockstep doesn't
// delete by them: Kubernetes copies labels to dependent objects. The member
// label also ensures that the set's manager owns a field of every object, which
// a prune requires.
const (
	// LabelPartOf is the label of the set's members.
	LabelPartOf          = "applyset.kubernetes.io/part-of"
	labelApplySetID      = "applyset.kubernetes.io/id"
	annotationTooling    = "applyset.kubernetes.io/tooling"
	annotationKinds      = "applyset.kubernetes.io/contains-group-kinds"
	annotationNamespaces = "applyset.kubernetes.io/additional-namespaces"
	tooling              = "lockstep/v1"
	// maxAnnotation bounds an annotation of the parent, in bytes; a longer list
	// is omitted.
	maxAnnotation = 64 << 10
)

// applySetID returns the ID of the ApplySet whose parent is a ConfigMap.
func applySetID(name, namespace string) string {
	digest := sha256.Sum256([]byte(name + "." + namespace + ".ConfigMap."))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(digest[:]) + "-v1"
}

// Label returns content with the member label. It copies only the maps that it
// changes.
func (s *Store) Label(content map[string]any) map[string]any {
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
	labels[LabelPartOf] = s.id
	metadata["labels"] = labels
	out["metadata"] = metadata
	return out
}

// parentAnnotations list the kinds and namespaces of the set, except own.
func parentAnnotations(entries []Entry, own string) map[string]string {
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
