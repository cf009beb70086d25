// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// ChangeKind is the kind of a difference between two payloads.
type ChangeKind string

// The kinds of changes.
const (
	Added   ChangeKind = "added"
	Removed ChangeKind = "removed"
	Changed ChangeKind = "changed"
)

// Change is an object that differs between two payloads.
type Change struct {
	Object ObjectID   `json:"object"`
	Kind   ChangeKind `json:"kind"`
	// Fields are the changed fields, at most maxFields; More is the number of
	// others.
	Fields []FieldChange `json:"fields,omitempty"`
	More   int           `json:"more,omitempty"`
}

// FieldChange is one field of a changed object. Old and New are JSON, clipped to
// a line, and masked in Secrets; "" means absent.
type FieldChange struct {
	// Path of the field, such as spec.containers[api].image.
	Path string `json:"path"`
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
}

// Limits and texts of a change.
const (
	maxFields = 50
	maxValue  = 120
	masked    = "(masked)"
)

// Diff returns the differences between the manifests of two payloads, sorted by
// object.
func Diff(before, after *Payload) []Change {
	old := make(map[ObjectID]*Manifest, len(before.Manifests))
	for i := range before.Manifests {
		old[before.Manifests[i].ID] = &before.Manifests[i]
	}
	var out []Change
	for i := range after.Manifests {
		m := &after.Manifests[i]
		was, existed := old[m.ID]
		delete(old, m.ID)
		switch {
		case !existed:
			out = append(out, Change{Object: m.ID, Kind: Added})
		case was.Hash != m.Hash:
			out = append(out, changed(was, m))
		}
	}
	for id := range old {
		out = append(out, Change{Object: id, Kind: Removed})
	}
	slices.SortFunc(out, func(a, b Change) int { return a.Object.Compare(b.Object) })
	return out
}

func changed(before, after *Manifest) Change {
	d := differ{change: Change{Object: after.ID, Kind: Changed}}
	if after.ID.GroupKind() == kinds.Secret {
		d.secret = true
	}
	d.mapping("", before.Object.Object, after.Object.Object)
	return d.change
}

// differ collects the fields of one change.
type differ struct {
	change Change
	secret bool
}

func (d *differ) compare(path string, before, after any) {
	oldMap, okOld := before.(map[string]any)
	newMap, okNew := after.(map[string]any)
	if okOld && okNew {
		d.mapping(path, oldMap, newMap)
		return
	}
	oldList, okOld := before.([]any)
	newList, okNew := after.([]any)
	if okOld && okNew {
		d.list(path, oldList, newList)
		return
	}
	d.note(path, before, after)
}

func (d *differ) mapping(path string, before, after map[string]any) {
	keys := slices.Collect(maps.Keys(before))
	for key := range after {
		if _, both := before[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		d.compare(join(path, key), before[key], after[key])
	}
}

// list compares items by name if all have unique names, else by position.
func (d *differ) list(path string, before, after []any) {
	oldNames, newNames := names(before), names(after)
	if oldNames == nil || newNames == nil {
		for i := range max(len(before), len(after)) {
			d.compare(path+"["+strconv.Itoa(i)+"]", at(before, i), at(after, i))
		}
		return
	}
	for i, name := range oldNames {
		var counterpart any
		if j := slices.Index(newNames, name); j >= 0 {
			counterpart = after[j]
		}
		d.compare(path+"["+name+"]", before[i], counterpart)
	}
	for j, name := range newNames {
		if !slices.Contains(oldNames, name) {
			d.compare(path+"["+name+"]", nil, after[j])
		}
	}
}

func at(list []any, i int) any {
	if i < len(list) {
		return list[i]
	}
	return nil
}

// names returns the name of each item, or nil unless all names are unique.
func names(list []any) []string {
	out := make([]string, 0, len(list))
	for _, item := range list {
		m, _ := item.(map[string]any)
		name, ok := m["name"].(string)
		if !ok || slices.Contains(out, name) {
			return nil
		}
		out = append(out, name)
	}
	return out
}

// note records a field if its values differ.
func (d *differ) note(path string, before, after any) {
	oldJSON, newJSON := value(before), value(after)
	if bytes.Equal(oldJSON, newJSON) {
		return
	}
	if len(d.change.Fields) == maxFields {
		d.change.More++
		return
	}
	field := FieldChange{Path: sanitize.Line(path), Old: sanitize.Clip(string(oldJSON), maxValue), New: sanitize.Clip(string(newJSON), maxValue)}
	// Annotations may contain a Secret's data, such as kubectl's last-applied.
	if d.secret && !strings.HasPrefix(path, "metadata.labels") && path != "type" && path != "immutable" {
		field.Old, field.New = mask(field.Old), mask(field.New)
	}
	d.change.Fields = append(d.change.Fields, field)
}

func mask(s string) string {
	if s == "" {
		return ""
	}
	return masked
}

// value returns the canonical JSON of v, nil if v is absent.
func value(v any) []byte {
	if v == nil {
		return nil
	}
	out, err := appendCanonical(nil, v)
	if err != nil {
		return []byte(masked) // Unreachable: loaded manifests have a canonical form.
	}
	return out
}

func join(path, key string) string {
	if strings.ContainsAny(key, ".[]/") {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
