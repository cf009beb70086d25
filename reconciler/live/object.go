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

// ManagerPrefix begins the field manager of each set of objects that we
// apply.
const ManagerPrefix = "lockstep:"

// DigestSize is the length of a Digest in bytes: long enough that two states
// of one object don't share one, short enough to keep five of them an object.
const DigestSize = 12

// Digest is a shortened SHA-256. The zero Digest stands for "nothing there".
type Digest [DigestSize]byte

// String returns the digest in unpadded URL-safe base64, "" for the zero one.
func (d Digest) String() string {
	if d == (Digest{}) {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(d[:])
}

// ParseDigest is the inverse of String.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if s == "" {
		return d, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(raw) != DigestSize {
		return d, fmt.Errorf("digest %.40q isn't %d bytes of base64", s, DigestSize)
	}
	copy(d[:], raw)
	return d, nil
}

// MarshalText encodes the digest as String does.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText decodes what MarshalText wrote.
func (d *Digest) UnmarshalText(text []byte) error {
	parsed, err := ParseDigest(string(text))
	*d = parsed
	return err
}

// Manager names who holds fields of an object.
type Manager struct {
	Name        string
	Operation   metav1.ManagedFieldsOperationType
	Subresource string
}

// Own is what one of our sets holds on an object.
type Own struct {
	// Manager is the set's field manager.
	Manager unique.Handle[string]
	// Entry is the digest of its managed-fields entry: API version, fields and
	// time. The time belongs to it, since another writer under the same name
	// changes nothing else.
	Entry Digest
	// Values is the digest of the values of the labels and annotations that
	// the entry holds.
	Values Digest
	// Scales tells that the entry holds a field named replicas.
	Scales bool
}

// Object is what we keep of a live object. It is immutable.
type Object struct {
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	Generation      int64
	// Deleting tells that the object has a deletion timestamp.
	Deleting bool
	// Controlled tells that the object has an owner that is its controller.
	Controlled bool
	// Merged tells that the object came by a list, not by an event, so that
	// several writes may lie behind it.
	Merged bool
	// Shared tells that one of our managers and somebody else hold a field of
	// the main resource in common: it stays when one of them drops it.
	Shared bool
	// Own holds the entries of our managers; usually there is one.
	Own []Own
	// Status is the digest of the managed-fields entries of the status
	// subresource, with their times.
	Status Digest
	// Foreign is the digest of all other entries that aren't ours, and of
	// labels, annotations, finalizers and owner references.
	Foreign Digest
	// Body is the whole object without managedFields where its kind has a
	// status contract and it is tracked, else nil. It must not be changed.
	Body *unstructured.Unstructured

	finalizers unique.Handle[string]
	managers   unique.Handle[string]
}

// Finalizers returns what keeps the object from going.
func (o *Object) Finalizers() []string { return split(o.finalizers) }

// Managers returns all managers of the object, ours included, in the order of
// their entries.
func (o *Object) Managers() []Manager {
	lines := split(o.managers)
	out := make([]Manager, 0, len(lines))
	for _, line := range lines {
		parts := strings.SplitN(line, "\x00", 3)
		out = append(out, Manager{Name: parts[0], Operation: metav1.ManagedFieldsOperationType(parts[1]), Subresource: parts[2]})
	}
	return out
}

// OwnBy returns what the named manager of ours holds. A manager without an
// entry holds nothing, which is legal: a bare Namespace leaves none.
func (o *Object) OwnBy(manager string) (Own, bool) {
	for _, own := range o.Own {
		if own.Manager.Value() == manager {
			return own, true
		}
	}
	return Own{}, false
}

// Summarize reads the digests from an object's metadata. It keeps no
// reference to meta.
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
	status, foreign := sha256.New(), sha256.New()
	hasStatus := false
	entries := meta.GetManagedFields()
	names := make([]string, 0, len(entries))
	for i := range entries {
		e := &entries[i]
		names = append(names, plain(e.Manager)+"\x00"+plain(string(e.Operation))+"\x00"+plain(e.Subresource))
		switch {
		case e.Subresource == "status":
			hasStatus = true
			writeEntry(status, e)
		case isOwn(e):
			o.Own = append(o.Own, ownOf(e, meta))
		default:
			writeEntry(foreign, e)
		}
	}
	o.managers = unique.Make(strings.Join(names, "\n"))
	o.Shared = len(o.Own) > 0 && shares(entries)
	if hasStatus {
		o.Status = sum(status)
	}
	writeMap(foreign, "labels", meta.GetLabels())
	writeMap(foreign, "annotations", meta.GetAnnotations())
	writeField(foreign, strings.Join(meta.GetFinalizers(), "\n"))
	for _, ref := range meta.GetOwnerReferences() {
		writeField(foreign, string(ref.UID))
	}
	o.Foreign = sum(foreign)
}

func isOwn(e *metav1.ManagedFieldsEntry) bool {
	return e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == "" && strings.HasPrefix(e.Manager, ManagerPrefix)
}

// shares reports whether one of our entries and another of the main resource have
// a field in common. Entries that can't be read are taken to.
func shares(entries []metav1.ManagedFieldsEntry) bool {
	ours, others := fieldpath.NewSet(), fieldpath.NewSet()
	for i := range entries {
		e := &entries[i]
		if e.Subresource != "" || e.FieldsV1 == nil {
			continue
		}
		set := fieldpath.NewSet()
		if err := set.FromJSON(bytes.NewReader(e.FieldsV1.GetRawBytes())); err != nil {
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

func ownOf(e *metav1.ManagedFieldsEntry, meta metav1.Object) Own {
	h := sha256.New()
	writeEntry(h, e)
	scales := e.FieldsV1 != nil && bytes.Contains(e.FieldsV1.GetRawBytes(), []byte(`"f:replicas":`))
	return Own{Manager: unique.Make(e.Manager), Entry: sum(h), Values: ownValues(e, meta), Scales: scales}
}

// ownValues hashes the values of the labels and annotations that e holds:
// admission may change them after the fields were tracked, so they are
// compared with those of our apply's answer.
func ownValues(e *metav1.ManagedFieldsEntry, meta metav1.Object) Digest {
	if e.FieldsV1 == nil {
		return Digest{}
	}
	raw := e.FieldsV1.GetRawBytes()
	if !bytes.Contains(raw, []byte(`"f:metadata"`)) {
		return Digest{}
	}
	var held struct {
		Metadata struct {
			Labels      map[string]json.RawMessage `json:"f:labels"`
			Annotations map[string]json.RawMessage `json:"f:annotations"`
		} `json:"f:metadata"`
	}
	if err := json.Unmarshal(raw, &held); err != nil {
		return Digest{} // The entry's own digest still tells a change.
	}
	h := sha256.New()
	writeHeld(h, held.Metadata.Labels, meta.GetLabels())
	writeHeld(h, held.Metadata.Annotations, meta.GetAnnotations())
	return sum(h)
}

func writeHeld(h hash.Hash, held map[string]json.RawMessage, values map[string]string) {
	for _, field := range slices.Sorted(maps.Keys(held)) {
		key, ok := strings.CutPrefix(field, "f:")
		if !ok {
			continue // "." stands for the map itself.
		}
		value, present := values[key]
		writeField(h, key)
		writeField(h, fmt.Sprint(present))
		writeField(h, value)
	}
	writeField(h, "")
}

func writeEntry(h hash.Hash, e *metav1.ManagedFieldsEntry) {
	writeField(h, e.Manager)
	writeField(h, string(e.Operation))
	writeField(h, e.Subresource)
	writeField(h, e.APIVersion)
	if e.FieldsV1 != nil {
		writeField(h, e.FieldsV1.GetRawString())
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

// writeField writes s with its length, so that no two lists of fields run
// into the same bytes. A hash never returns an error.
func writeField(h hash.Hash, s string) {
	_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(s))))
	_, _ = h.Write([]byte(s))
}

func sum(h hash.Hash) Digest {
	var full [sha256.Size]byte
	h.Sum(full[:0])
	return Digest(full[:DigestSize])
}

// plain makes a name that anybody may have chosen fit to be joined.
func plain(name string) string {
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
