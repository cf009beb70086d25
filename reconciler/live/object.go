// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// ManagerPrefix is the prefix of all field managers of Lockstep; each set of
// applied objects has its own.
const ManagerPrefix = "lockstep:"

// HashSize is the length of a Hash in bytes: long enough that states of one
// object don't collide, short enough to cache five digests per object.
const HashSize = 12

// Hash is a truncated SHA-256. The zero Hash means that there is no content.
type Hash [HashSize]byte

// String returns the hash in unpadded URL-safe base64, "" for the zero Hash.
func (d Hash) String() string {
	if d == (Hash{}) {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(d[:])
}

// ParseHash parses the result of Hash.String.
func ParseHash(s string) (Hash, error) {
	var d Hash
	if s == "" {
		return d, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(raw) != HashSize {
		return d, fmt.Errorf("parse digest %.40q: want %d bytes in base64", s, HashSize)
	}
	copy(d[:], raw)
	return d, nil
}

// MarshalText implements encoding.TextMarshaler in the format of String.
func (d Hash) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Hash) UnmarshalText(text []byte) error {
	parsed, err := ParseHash(string(text))
	*d = parsed
	return err
}

// Manager is a field manager of an object.
type Manager struct {
	Name        string
	Operation   metav1.ManagedFieldsOperationType
	Subresource string
}

// OwnFields describes the fields of an object that one of our field managers owns.
type OwnFields struct {
	// Manager is the field manager.
	Manager unique.Handle[string]
	// Entry is the hash of its managedFields entry: API version, fields and
	// time. The time is included because a write by another client under the
	// same name may change nothing else.
	Entry Hash
	// Values is the hash of the values of the owned labels and annotations.
	Values Hash
	// Replicas is true if the manager owns a field named replicas.
	Replicas bool
}

// Object is the cached summary of a live object. It is immutable.
type Object struct {
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	Generation      int64
	// Deleting is true if the object has a deletion timestamp.
	Deleting bool
	// Controlled is true if the object has a controller owner reference.
	Controlled bool
	// Merged is true if the object was read from a list and not from an event, so
	// that it may combine several writes.
	Merged bool
	// Shared is true if one of our field managers and another one own the same
	// field of the main resource: the field remains when one of them drops it.
	Shared bool
	// OwnFields has one element per field manager of ours, usually one.
	OwnFields []OwnFields
	// Status is the hash of the managedFields entries of the status
	// subresource, including their times.
	Status Hash
	// OtherManagers is the hash of all other managedFields entries, and of
	// labels, annotations, finalizers and owner references.
	OtherManagers Hash
	// Body is the whole object without managedFields if its kind is watched with
	// bodies and the object is tracked, else nil. It must not be modified.
	Body *unstructured.Unstructured

	finalizers unique.Handle[string]
	managers   unique.Handle[string]
}

// Finalizers returns the object's finalizers.
func (o *Object) Finalizers() []string { return split(o.finalizers) }

// Managers returns all field managers of the object, including ours, in the order
// of managedFields.
func (o *Object) Managers() []Manager {
	lines := split(o.managers)
	out := make([]Manager, 0, len(lines))
	for _, line := range lines {
		parts := strings.SplitN(line, "\x00", 3)
		out = append(out, Manager{Name: parts[0], Operation: metav1.ManagedFieldsOperationType(parts[1]), Subresource: parts[2]})
	}
	return out
}

// OwnFieldsOf returns the fields that this manager of ours owns. It returns false
// if the manager has no entry, as after applying a Namespace without fields.
func (o *Object) OwnFieldsOf(manager string) (OwnFields, bool) {
	for _, own := range o.OwnFields {
		if own.Manager.Value() == manager {
			return own, true
		}
	}
	return OwnFields{}, false
}

// Summarize returns the summary of an object's metadata. It retains no reference
// to meta.
func Summarize(meta metav1.Object) *Object {
	o := &Object{
		Namespace:       meta.GetNamespace(),
		Name:            meta.GetName(),
		UID:             meta.GetUID(),
		ResourceVersion: meta.GetResourceVersion(),
		Generation:      meta.GetGeneration(),
		Deleting:        meta.GetDeletionTimestamp() != nil,
		Controlled:      metav1.GetControllerOfNoCopy(meta) != nil,
		finalizers:      unique.Make(strings.Join(meta.GetFinalizers(), "\n")),
	}
	o.readEntries(meta)
	return o
}

func (o *Object) readEntries(meta metav1.Object) {
	status, others := sha256.New(), sha256.New()
	hasStatus := false
	managed := meta.GetManagedFields()
	entries := make([]fieldsEntry, len(managed))
	names := make([]string, 0, len(entries))
	for i, entry := range managed {
		entries[i].ManagedFieldsEntry = entry
		e := &entries[i]
		names = append(names, escape(e.Manager)+"\x00"+escape(string(e.Operation))+"\x00"+escape(e.Subresource))
		switch {
		case e.Subresource == "status":
			hasStatus = true
			writeEntry(status, e)
		case isOwn(e):
			o.OwnFields = append(o.OwnFields, ownFieldsOf(e, meta))
		default:
			writeEntry(others, e)
		}
	}
	o.managers = unique.Make(strings.Join(names, "\n"))
	o.Shared = len(o.OwnFields) > 0 && len(o.OwnFields) < len(entries) && sharesFields(entries)
	if hasStatus {
		o.Status = sum(status)
	}
	writeMap(others, "labels", meta.GetLabels())
	writeMap(others, "annotations", meta.GetAnnotations())
	writeField(others, strings.Join(meta.GetFinalizers(), "\n"))
	for _, ref := range meta.GetOwnerReferences() {
		writeField(others, string(ref.UID))
	}
	o.OtherManagers = sum(others)
}

// fieldsEntry is one entry of managedFields, whose fields are parsed once.
type fieldsEntry struct {
	metav1.ManagedFieldsEntry

	set *fieldpath.Set
	err error
}

// fields returns the set of fields, nil for an entry without one.
func (e *fieldsEntry) fields() (*fieldpath.Set, error) {
	if e.set == nil && e.err == nil && e.FieldsV1 != nil {
		e.set = fieldpath.NewSet()
		e.err = e.set.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes()))
	}
	return e.set, e.err
}

// canonical returns the fields as the API server encodes them. The bytes of an
// entry depend on the way of the object: the server orders the keys of list items
// by their values, so that port 80 precedes 443, and a decoder of unstructured
// objects by their text.
func (e *fieldsEntry) canonical() []byte {
	raw := e.FieldsV1.GetRawBytes()
	if isCanonical(raw) {
		return raw
	}
	if set, err := e.fields(); err == nil {
		if encoded, err := set.ToJSON(); err == nil {
			return encoded
		}
	}
	return raw
}

// isCanonical reports whether fields in JSON have only one encoding: they contain
// no list items, and no characters that encoders escape differently.
func isCanonical(raw []byte) bool {
	for i, c := range raw {
		switch {
		case c <= ' ' || c > '~' || c == '\\' || c == '<' || c == '>' || c == '&':
			return false
		case c == ':' && i >= 2 && raw[i-2] == '"' && raw[i-1] != 'f':
			return false // A list item: "k:, "v: or "i:
		}
	}
	return true
}

func isOwn(e *fieldsEntry) bool {
	return e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == "" && strings.HasPrefix(e.Manager, ManagerPrefix)
}

// sharesFields reports whether one of our entries and another entry of the main
// resource have a field in common. It returns true if an entry can't be parsed.
func sharesFields(entries []fieldsEntry) bool {
	ours, others := fieldpath.NewSet(), fieldpath.NewSet()
	for i := range entries {
		e := &entries[i]
		if e.Subresource != "" || e.FieldsV1 == nil {
			continue
		}
		set, err := e.fields()
		if err != nil {
			return true
		}
		if isOwn(e) {
			ours = ours.Union(set)
		} else {
			others = others.Union(set)
		}
	}
	return !others.Empty() && !ours.Intersection(others).Leaves().Empty()
}

func ownFieldsOf(e *fieldsEntry, meta metav1.Object) OwnFields {
	h := sha256.New()
	writeEntry(h, e)
	replicas := e.FieldsV1 != nil && bytes.Contains(e.FieldsV1.GetRawBytes(), []byte(`"f:replicas":`))
	return OwnFields{Manager: unique.Make(e.Manager), Entry: sum(h), Values: ownValues(e, meta), Replicas: replicas}
}

// ownValues returns the hash of the values of the labels and annotations in e.
// Admission may change values without changing the entry.
func ownValues(e *fieldsEntry, meta metav1.Object) Hash {
	if e.FieldsV1 == nil {
		return Hash{}
	}
	raw := e.FieldsV1.GetRawBytes()
	if !bytes.Contains(raw, []byte(`"f:metadata"`)) {
		return Hash{}
	}
	var owned struct {
		Metadata struct {
			Labels      map[string]json.RawMessage `json:"f:labels"`
			Annotations map[string]json.RawMessage `json:"f:annotations"`
		} `json:"f:metadata"`
	}
	if err := json.Unmarshal(raw, &owned); err != nil {
		return Hash{} // The entry's own hash still shows changes.
	}
	h := sha256.New()
	writeOwned(h, owned.Metadata.Labels, meta.GetLabels())
	writeOwned(h, owned.Metadata.Annotations, meta.GetAnnotations())
	return sum(h)
}

func writeOwned(h hash.Hash, owned map[string]json.RawMessage, values map[string]string) {
	for _, field := range slices.Sorted(maps.Keys(owned)) {
		key, ok := strings.CutPrefix(field, "f:")
		if !ok {
			continue // "." is the map itself.
		}
		value, present := values[key]
		writeField(h, key)
		writeField(h, fmt.Sprint(present))
		writeField(h, value)
	}
	writeField(h, "")
}

func writeEntry(h hash.Hash, e *fieldsEntry) {
	writeField(h, e.Manager)
	writeField(h, string(e.Operation))
	writeField(h, e.Subresource)
	writeField(h, e.APIVersion)
	if e.FieldsV1 != nil {
		writeBytes(h, e.canonical())
	}
	if e.Time != nil {
		writeField(h, e.Time.UTC().Format(time.RFC3339))
	}
}

func writeMap(h hash.Hash, name string, m map[string]string) {
	writeField(h, name)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		writeField(h, k)
		writeField(h, m[k])
	}
}

// writeField writes s with its length, so that different lists of fields never
// produce the same bytes.
func writeField(h hash.Hash, s string) { writeBytes(h, []byte(s)) }

// writeBytes is writeField for bytes. A hash returns no error.
func writeBytes(h hash.Hash, b []byte) {
	_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(b))))
	_, _ = h.Write(b)
}

func sum(h hash.Hash) Hash {
	var full [sha256.Size]byte
	h.Sum(full[:0])
	return Hash(full[:HashSize])
}

// escape replaces the separators in a name, which any client may choose.
func escape(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == 0 {
			return ' '
		}
		return r
	}, name)
}

func split(joined unique.Handle[string]) []string {
	if joined == (unique.Handle[string]{}) || joined.Value() == "" {
		return nil
	}
	return strings.Split(joined.Value(), "\n")
}
