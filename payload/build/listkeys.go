// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/lockstep-dev/lockstep/payload"
)

// applySchemas are the schemas by which the API server merges lists in
// server-side apply, as client-go contains them.
var applySchemas = sync.OnceValue(func() managedfields.TypeConverter {
	return applyconfigurations.NewTypeConverter(scheme.Scheme)
})

// listCheck searches an object for list items with the same key, which
// server-side apply refuses.
type listCheck struct {
	o      *payload.SourceObject
	schema *smd.Schema
	path   []string
	found  []error
}

// maxTwice limits the errors of one object.
const maxTwice = 20

// checkListKeys returns the duplicate items of an object of a built-in kind.
func checkListKeys(o *payload.SourceObject) []error {
	apiVersion, _ := o.Content["apiVersion"].(string)
	gvk := schema.FromAPIVersionAndKind(apiVersion, o.ID().Kind)
	if !scheme.Scheme.Recognizes(gvk) {
		return nil
	}
	empty := &unstructured.Unstructured{}
	empty.SetGroupVersionKind(gvk)
	typed, err := applySchemas().ObjectToTyped(empty)
	if err != nil {
		return nil // The kind has no schema; it can't be applied by a client either.
	}
	c := listCheck{o: o, schema: typed.Schema()}
	c.check(typed.TypeRef(), o.Content)
	return c.found
}

func (c *listCheck) check(ref smd.TypeRef, value any) {
	atom, ok := c.schema.Resolve(ref)
	if !ok {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		if atom.Map == nil {
			return
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			element := atom.Map.ElementType
			if field, ok := atom.Map.FindField(key); ok {
				element = field.Type
			}
			c.at(key, element, value[key])
		}
	case []any:
		if atom.List == nil {
			return
		}
		c.unique(atom.List, value)
		for i, item := range value {
			c.at(strconv.Itoa(i), atom.List.ElementType, item)
		}
	}
}

func (c *listCheck) at(key string, ref smd.TypeRef, value any) {
	c.path = append(c.path, key)
	c.check(ref, value)
	c.path = c.path[:len(c.path)-1]
}

// unique reports items of an associative list with the same key.
func (c *listCheck) unique(list *smd.List, items []any) {
	if list.ElementRelationship != smd.Associative {
		return
	}
	first := map[string]int{}
	for i, item := range items {
		key, ok := c.keyOf(list, item)
		if !ok || len(c.found) >= maxTwice {
			continue
		}
		before, twice := first[key]
		if !twice {
			first[key] = i
			continue
		}
		at := append(slices.Clone(c.path), strconv.Itoa(i))
		other := append(slices.Clone(c.path), strconv.Itoa(before))
		c.found = append(c.found, c.o.FieldErrorf(at, "has the key of an item before it (%s, line %d), which the API server refuses; remove one of them", key, c.o.LineOf(other...)))
	}
}

// keyOf returns the key of an item for display, with defaults for missing parts.
// ok is false for items without any part of the key.
func (c *listCheck) keyOf(list *smd.List, item any) (key string, ok bool) {
	if len(list.Keys) == 0 {
		text, isText := item.(string)
		return strconv.Quote(text), isText
	}
	content, _ := item.(map[string]any)
	element, known := c.schema.Resolve(list.ElementType)
	var parts []string
	for _, name := range list.Keys {
		value, exists := content[name]
		if exists {
			ok = true
		} else if known && element.Map != nil {
			field, _ := element.Map.FindField(name)
			value = field.Default
		}
		if value != nil && value != "" {
			parts = append(parts, fmt.Sprintf("%s %v", name, value))
		}
	}
	return strings.Join(parts, ", "), ok && len(parts) > 0
}
