// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// fieldsOf reads the fields of a managed-fields entry.
func fieldsOf(e *metav1.ManagedFieldsEntry) (*fieldpath.Set, error) {
	set := fieldpath.NewSet()
	if e.FieldsV1 == nil {
		return set, nil
	}
	if err := set.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes())); err != nil {
		return nil, fmt.Errorf("fields of manager %.60q: %w", e.Manager, err)
	}
	return set, nil
}

// step finds the place of a path element in a value of a manifest: a key of a
// map, or an index of a list.
func step(at any, el fieldpath.PathElement) (key string, index int, child any, ok bool) {
	switch v := at.(type) {
	case map[string]any:
		if el.FieldName == nil {
			return "", 0, nil, false
		}
		child, ok = v[*el.FieldName]
		return *el.FieldName, -1, child, ok
	case []any:
		for i, item := range v {
			if selects(el, i, item) {
				return "", i, item, true
			}
		}
	}
	return "", 0, nil, false
}

// selects reports whether el names the list's item. A key that the manifest
// leaves to its default (the protocol of a port) is taken to match.
func selects(el fieldpath.PathElement, i int, item any) bool {
	switch {
	case el.Index != nil:
		return *el.Index == i
	case el.Value != nil:
		return value.Equals(*el.Value, value.NewValueInterface(item))
	case el.Key != nil:
		fields, isMap := item.(map[string]any)
		if !isMap {
			return false
		}
		for _, want := range *el.Key {
			if have, present := fields[want.Name]; present && !value.Equals(want.Value, value.NewValueInterface(have)) {
				return false
			}
		}
		return true
	default:
		return false
	}
}

// lookup finds a path in a manifest, and its JSON pointer.
func lookup(content map[string]any, path fieldpath.Path) (pointer string, found any, ok bool) {
	var at any = content
	var b strings.Builder
	for _, el := range path {
		key, index, child, ok := step(at, el)
		if !ok {
			return "", nil, false
		}
		b.WriteByte('/')
		if index >= 0 {
			b.WriteString(strconv.Itoa(index))
		} else {
			b.WriteString(escape(key))
		}
		at = child
	}
	return b.String(), at, true
}

func escape(token string) string {
	return strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1")
}

func unescape(token string) string {
	return strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
}

// at finds a JSON pointer (RFC 6901).
func at(content any, pointer string) (any, bool) {
	if pointer == "" {
		return content, true
	}
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		switch v := content.(type) {
		case map[string]any:
			child, ok := v[unescape(token)]
			if !ok {
				return nil, false
			}
			content = child
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			content = v[i]
		default:
			return nil, false
		}
	}
	return content, true
}

// remove takes the value at a JSON pointer out of content, which it changes.
// What isn't there is left so.
func remove(content map[string]any, pointer string) {
	cut := strings.LastIndexByte(pointer, '/')
	if cut < 0 {
		return
	}
	parent, ok := at(content, pointer[:cut])
	if !ok {
		return
	}
	last := unescape(pointer[cut+1:])
	switch v := parent.(type) {
	case map[string]any:
		delete(v, last)
	case []any:
		i, err := strconv.Atoi(last)
		if err != nil || i < 0 || i >= len(v) {
			return
		}
		grandparent, key := content, pointer[:cut]
		replace(grandparent, key, append(v[:i:i], v[i+1:]...))
	}
}

// replace sets the value at a JSON pointer whose parent exists.
func replace(content map[string]any, pointer string, with any) {
	cut := strings.LastIndexByte(pointer, '/')
	if cut < 0 {
		return
	}
	parent, ok := at(content, pointer[:cut])
	if !ok {
		return
	}
	last := unescape(pointer[cut+1:])
	switch v := parent.(type) {
	case map[string]any:
		v[last] = with
	case []any:
		if i, err := strconv.Atoi(last); err == nil && i >= 0 && i < len(v) {
			v[i] = with
		}
	}
}

// within reports whether a pointer is one of roots or below it.
func within(pointer string, roots []string) bool {
	for _, root := range roots {
		if pointer == root || strings.HasPrefix(pointer, root+"/") {
			return true
		}
	}
	return false
}

// held is a field of a manifest that somebody else holds.
type held struct {
	pointer string
	value   any
	manager string
	scale   bool
}

// lostFields returns the fields of content that entries for which pick is
// true hold and that our manager doesn't.
func lostFields(entries []metav1.ManagedFieldsEntry, manager string, content map[string]any, pick func(*metav1.ManagedFieldsEntry) bool) []held {
	ours := fieldpath.NewSet()
	for i := range entries {
		if e := &entries[i]; isManager(e, manager) {
			if set, err := fieldsOf(e); err == nil {
				ours = set
			}
		}
	}
	var out []held
	for i := range entries {
		e := &entries[i]
		if isManager(e, manager) || !pick(e) {
			continue
		}
		set, err := fieldsOf(e)
		if err != nil {
			continue // What can't be read can't be yielded.
		}
		for path := range set.Leaves().Difference(ours).All() {
			pointer, val, ok := lookup(content, path)
			if ok && !within(pointer, []string{"/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"}) {
				out = append(out, held{pointer: pointer, value: val, manager: e.Manager, scale: e.Subresource == "scale"})
			}
		}
	}
	return out
}

func isManager(e *metav1.ManagedFieldsEntry, manager string) bool {
	return e.Manager == manager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == ""
}
