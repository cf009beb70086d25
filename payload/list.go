// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"slices"
	"strings"
)

// listItem is an object of a document, with its position in nested lists.
type listItem struct {
	content map[string]any
	// path are the indexes of the object in the document's lists.
	path []int
	// inferred is true if the list's kind provided that of the item.
	inferred bool
}

// expandList returns the items of a list, as kubectl does: of a v1 List, or of a
// list of one kind, such as a ConfigMapList, whose items may omit apiVersion and
// kind. Other documents are returned as they are.
func expandList(content map[string]any) []listItem {
	return appendItems(nil, listItem{content: content})
}

func appendItems(out []listItem, l listItem) []listItem {
	content, path := l.content, l.path
	items, isList := itemsOf(content)
	if !isList {
		return append(out, l)
	}
	apiVersion, itemKind := content["apiVersion"], itemKindOf(content)
	for i, item := range items {
		object, ok := item.(map[string]any)
		if !ok {
			object = map[string]any{} // Rejected later, since it has no kind.
		}
		inferred := object["kind"] == nil && object["apiVersion"] == nil && itemKind != "" && ok
		if inferred {
			object["apiVersion"], object["kind"] = apiVersion, itemKind
		}
		out = appendItems(out, listItem{object, append(slices.Clip(path), i), inferred})
	}
	return out
}

// itemsOf returns the items if the object is a list. An object with a name isn't,
// although its kind may end with List and have a field items.
func itemsOf(content map[string]any) (items []any, isList bool) {
	kind, _ := content["kind"].(string)
	apiVersion, _ := content["apiVersion"].(string)
	if !strings.HasSuffix(kind, "List") || apiVersion == "" {
		return nil, false
	}
	if metadata, _ := content["metadata"].(map[string]any); metadata["name"] != nil {
		return nil, false
	}
	if itemKindOf(content) == "" && apiVersion != "v1" {
		return nil, false
	}
	value, exists := content["items"]
	items, isList = value.([]any)
	return items, isList || exists && value == nil
}

// itemKindOf returns the kind of a list's items, or "" for a v1 List.
func itemKindOf(content map[string]any) string {
	kind, _ := content["kind"].(string)
	return strings.TrimSuffix(kind, "List")
}
