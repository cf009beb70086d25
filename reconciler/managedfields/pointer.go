// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// At returns the value at a JSON pointer (RFC 6901).
func At(content any, pointer string) (any, bool) {
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

// Remove deletes the values at the JSON pointers from content, in place.
// Pointers that content lacks are ignored. Indices refer to content as passed.
func Remove(content map[string]any, pointers []string) {
	// Backwards, so that a removal shifts no index of a later one.
	for _, pointer := range slices.Backward(slices.SortedFunc(slices.Values(pointers), comparePointers)) {
		remove(content, pointer)
	}
}

func remove(content map[string]any, pointer string) {
	parent, last, ok := parentOf(content, pointer)
	if !ok {
		return
	}
	switch v := parent.(type) {
	case map[string]any:
		delete(v, unescape(last))
	case []any:
		i, err := strconv.Atoi(last)
		if err != nil || i < 0 || i >= len(v) {
			return
		}
		replace(content, pointer[:len(pointer)-len(last)-1], append(v[:i:i], v[i+1:]...))
	}
}

// replace sets an existing value.
func replace(content map[string]any, pointer string, with any) {
	parent, last, _ := parentOf(content, pointer)
	switch v := parent.(type) {
	case map[string]any:
		v[unescape(last)] = with
	case []any:
		if i, err := strconv.Atoi(last); err == nil {
			v[i] = with
		}
	}
}

// parentOf returns the value that contains the pointer's last token.
func parentOf(content map[string]any, pointer string) (parent any, last string, ok bool) {
	cut := strings.LastIndexByte(pointer, '/')
	if cut < 0 {
		return nil, "", false
	}
	parent, ok = At(content, pointer[:cut])
	return parent, pointer[cut+1:], ok
}

// comparePointers orders JSON pointers by their tokens; indices numerically.
func comparePointers(a, b string) int {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	return slices.CompareFunc(x, y, func(s, t string) int {
		i, errI := strconv.Atoi(s)
		k, errK := strconv.Atoi(t)
		if errI == nil && errK == nil {
			return cmp.Compare(i, k)
		}
		return cmp.Compare(s, t)
	})
}

// within reports whether a pointer is one of roots or below one.
func within(pointer string, roots []string) bool {
	for _, root := range roots {
		if pointer == root || strings.HasPrefix(pointer, root+"/") {
			return true
		}
	}
	return false
}

func escape(token string) string {
	return strings.ReplaceAll(strings.ReplaceAll(token, "~", "~0"), "/", "~1")
}

func unescape(token string) string {
	return strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
}

// lookup returns the value of content at a field path, and its JSON pointer.
func lookup(content map[string]any, path fieldpath.Path) (pointer string, found any, ok bool) {
	var at any = content
	var b strings.Builder
	for _, el := range path {
		token, child, ok := step(at, el)
		if !ok {
			return "", nil, false
		}
		b.WriteByte('/')
		b.WriteString(token)
		at = child
	}
	return b.String(), at, true
}

// pointerOf returns the JSON pointer of a field path that content needn't have.
// Below the last field of content only field names are converted; a list element
// there has no pointer.
func pointerOf(content map[string]any, path fieldpath.Path) (string, bool) {
	var at any = content
	var b strings.Builder
	for _, el := range path {
		token, child, ok := step(at, el)
		switch {
		case !ok && el.FieldName == nil:
			return "", false
		case !ok:
			token, child = escape(*el.FieldName), nil
		}
		b.WriteByte('/')
		b.WriteString(token)
		at = child
	}
	return b.String(), true
}

// step finds a path element in a value of a manifest, and returns its pointer
// token.
func step(at any, el fieldpath.PathElement) (token string, child any, ok bool) {
	switch v := at.(type) {
	case map[string]any:
		if el.FieldName == nil {
			return "", nil, false
		}
		child, ok = v[*el.FieldName]
		return escape(*el.FieldName), child, ok
	case []any:
		for i, item := range v {
			if selects(el, i, item) {
				return strconv.Itoa(i), item, true
			}
		}
	}
	return "", nil, false
}

// selects reports whether el identifies the list's item. A key that the manifest
// leaves to its default (the protocol of a port) matches.
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
