// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// Format is the version of the stored form that is written. Load reads Format and
// Format+1, and converts formatSingle. Format 3 is skipped: earlier versions read
// it as a document with all records and would find an empty one.
const (
	Format       = 4
	formatSingle = 2
)

// MaxBytes limits each stored object, below the limits of ConfigMaps and etcd.
const MaxBytes = 1 << 20

// document has all sources and releases.
type document struct {
	Sources  map[string]Source  `json:"sources"`
	Releases map[string]Release `json:"releases,omitempty"`
	// sequence orders the sources by their last claim of a new object.
	sequence map[string]int64
}

// clone returns a copy whose records can be replaced, not changed in place.
func (d document) clone() document {
	next := document{Sources: maps.Clone(d.Sources), Releases: maps.Clone(d.Releases), sequence: maps.Clone(d.sequence)}
	if next.Sources == nil {
		next.Sources = map[string]Source{}
	}
	if next.Releases == nil {
		next.Releases = map[string]Release{}
	}
	if next.sequence == nil {
		next.sequence = map[string]int64{}
	}
	return next
}

// record is the stored form of one source or one release.
type record struct {
	Format int `json:"format"`
	// Kind and Name are those of the declared object.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Sequence is higher than that of every source which claimed an object earlier.
	// A process that ends between the writes of two sources leaves an object in
	// both; the higher one has it.
	Sequence int64    `json:"sequence,omitempty"`
	Source   *Source  `json:"source,omitempty"`
	Release  *Release `json:"release,omitempty"`
}

// id is how messages name the record.
func (r record) id() string { return r.Kind + "/" + r.Name }

// deleted reports whether the record is to be removed.
func (r record) deleted() bool { return r.Source == nil && r.Release == nil }

// records returns a record for each source, the last claim first, then for each
// release by name.
func (d document) records() []record {
	var out []record
	for name, src := range d.Sources {
		out = append(out, record{Format: Format, Kind: v1alpha1.KindGitSource, Name: name, Sequence: d.sequence[name], Source: &src})
	}
	slices.SortFunc(out, func(a, b record) int {
		return cmp.Or(cmp.Compare(b.Sequence, a.Sequence), cmp.Compare(a.Name, b.Name))
	})
	for _, name := range slices.Sorted(maps.Keys(d.Releases)) {
		r := d.Releases[name]
		out = append(out, record{Format: Format, Kind: v1alpha1.KindClusterRelease, Name: name, Release: &r})
	}
	return out
}

// changes returns the records to write so that before becomes next. An object that
// moves between sources is written with its new source first, so that it is never
// without one; removals come last.
func changes(before, next document) []record {
	was := map[string]record{}
	for _, r := range before.records() {
		was[r.id()] = r
	}
	var out []record
	for _, r := range next.records() {
		if old, ok := was[r.id()]; !ok || !reflect.DeepEqual(old, r) {
			out = append(out, r)
		}
		delete(was, r.id())
	}
	for _, id := range slices.Sorted(maps.Keys(was)) {
		out = append(out, record{Kind: was[id].Kind, Name: was[id].Name})
	}
	return out
}

// set stores or removes a record.
func (d *document) set(r record) {
	switch {
	case r.Source != nil:
		d.Sources[r.Name], d.sequence[r.Name] = *r.Source, r.Sequence
	case r.Release != nil:
		d.Releases[r.Name] = *r.Release
	case r.Kind == v1alpha1.KindGitSource:
		delete(d.Sources, r.Name)
		delete(d.sequence, r.Name)
	default:
		delete(d.Releases, r.Name)
	}
}

// claim stores a source, and removes its objects from all others.
func (d *document) claim(name string, src Source) {
	if !subset(src.Objects, d.Sources[name].Objects) {
		var last int64
		for _, n := range d.sequence {
			last = max(last, n)
		}
		d.sequence[name] = last + 1
	}
	d.Sources[name] = src
	for other := range d.Sources {
		if other != name {
			d.relinquish(other, src.Objects)
		}
	}
}

// subset reports whether all keys of a are in b.
func subset(a, b map[string]string) bool {
	for key := range a {
		if _, ok := b[key]; !ok {
			return false
		}
	}
	return true
}

// relinquish removes objects from a source.
func (d *document) relinquish(name string, objects map[string]string) {
	src := d.Sources[name]
	var lost []string
	for key := range src.Objects {
		if _, ok := objects[key]; ok {
			lost = append(lost, key)
		}
	}
	if len(lost) == 0 {
		return
	}
	src.Objects, src.UIDs, src.Manifests = maps.Clone(src.Objects), maps.Clone(src.UIDs), maps.Clone(src.Manifests)
	for _, key := range lost {
		delete(src.Objects, key)
		delete(src.UIDs, key)
		delete(src.Manifests, key)
	}
	src.Removed = slices.DeleteFunc(slices.Clone(src.Removed), func(key string) bool { return slices.Contains(lost, key) })
	d.Sources[name] = src
}

// settle gives each object that several sources have to the last one that claimed
// it.
func (d *document) settle() {
	claimed := map[string]string{}
	for _, r := range d.records() {
		if r.Source == nil {
			continue
		}
		d.relinquish(r.Name, claimed)
		maps.Copy(claimed, r.Source.Objects)
	}
}

// encode returns the stored form of a record.
func (r record) encode() ([]byte, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the accepted state of %s: %w", r.id(), err)
	}
	if len(raw) > MaxBytes {
		return nil, &limitError{fmt.Errorf("persist %s: its accepted state has %d bytes, the limit is %d; declare fewer objects in it", r.id(), len(raw), MaxBytes)}
	}
	return raw, nil
}

// decodeRecord reads the stored form of a record.
func decodeRecord(raw []byte) (record, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("decode: %w", err)
	}
	if err := checkFormat(r.Format); err != nil {
		return r, err
	}
	switch {
	case r.Name == "":
		return r, fmt.Errorf("it has no name")
	case r.Kind == v1alpha1.KindGitSource && r.Source != nil && r.Release == nil, r.Kind == v1alpha1.KindClusterRelease && r.Release != nil && r.Source == nil:
		return r, nil
	}
	return r, fmt.Errorf("kind %.40q doesn't match its content", r.Kind)
}

// checkFormat rejects the formats that this version doesn't read.
func checkFormat(format int) error {
	switch {
	case format < Format:
		return fmt.Errorf("format %d was written by an earlier version; this version reads %d to %d", format, Format, Format+1)
	case format > Format+1:
		return fmt.Errorf("format %d was written by a later version; this version reads %d to %d", format, Format, Format+1)
	}
	return nil
}

// limitError is an error that only a smaller declaration resolves.
type limitError struct{ err error }

// Error implements error.
func (e *limitError) Error() string { return e.err.Error() }

// Reason returns the condition reason.
func (*limitError) Reason() string { return "LimitExceeded" }

// Retriable reports that the declaration must change.
func (*limitError) Retriable() bool { return false }
