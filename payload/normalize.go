// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"encoding/base64"
	"fmt"
)

// serverFields are the fields of metadata that the API server sets.
func serverFields() [6]string {
	return [...]string{"creationTimestamp", "managedFields", "resourceVersion", "uid", "generation", "selfLink"}
}

// normalize converts content to the form that is hashed and applied, and reports
// whether it changed.
//
// The API server copies a Secret's stringData into data but records ownership of
// stringData, so that removed keys would remain. It also sets the rules of an
// aggregated ClusterRole. Empty lists and maps are significant, as in a
// NetworkPolicy, and remain.
func normalize(content map[string]any) (changed bool, err error) {
	changed = drop(content, "status")
	if metadata, ok := content["metadata"].(map[string]any); ok {
		for _, key := range serverFields() {
			changed = drop(metadata, key) || changed
		}
		for _, key := range [...]string{"annotations", "labels"} {
			if value, exists := metadata[key]; exists && value == nil {
				changed = drop(metadata, key) || changed
			}
		}
	}
	if content["aggregationRule"] != nil {
		changed = drop(content, "rules") || changed
	}
	if _, exists := content["stringData"]; exists && content["apiVersion"] == "v1" && content["kind"] == "Secret" {
		return true, foldStringData(content)
	}
	return changed, nil
}

// drop deletes key and reports whether it was present.
func drop(content map[string]any, key string) bool {
	_, exists := content[key]
	delete(content, key)
	return exists
}

// foldStringData merges stringData into data, in base64. stringData takes
// precedence, as in the API server.
func foldStringData(secret map[string]any) error {
	raw := secret["stringData"]
	delete(secret, "stringData")
	if raw == nil {
		return nil
	}
	plain, ok := raw.(map[string]any)
	if !ok {
		return &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("stringData is a %s, must be a mapping", typeName(raw))}
	}
	data, ok := secret["data"].(map[string]any)
	if !ok {
		if secret["data"] != nil {
			return &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("data is a %s, must be a mapping", typeName(secret["data"]))}
		}
		data = make(map[string]any, len(plain))
	}
	for key, value := range plain {
		text, ok := value.(string)
		if !ok {
			return &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("stringData.%s is a %s, must be a string; quote it", key, typeName(value))}
		}
		data[key] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	secret["data"] = data
	return nil
}
