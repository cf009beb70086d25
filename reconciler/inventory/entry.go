// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package inventory stores which objects a set has applied, and the record of
// each last apply, in ConfigMaps (shards) that also form an ApplySet
// (KEP-3659).
//
// Package apply decides what is stored. FindHeld reads the inventories of all
// sets, for tools that explain an object.
package inventory

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// format is the version that is written. The versions one below and one above
// are read too, so that neighbouring Lockstep versions can replace each other:
// a new format may only add fields.
const format = 1

// MaxYields bounds the yielded fields of one object.
const MaxYields = 20

// EpochRead is the Epoch of a record that was read from the inventory: no watch
// of this process has it.
const EpochRead = -1

// Record is what the response to the last apply showed of an object.
type Record struct {
	// UID is "" before the first apply.
	UID             types.UID `json:"u,omitempty"`
	ResourceVersion string    `json:"rv,omitempty"`
	Generation      int64     `json:"gen,omitempty"`
	// Desired is the shortened hash of the applied manifest.
	Desired live.Hash `json:"h,omitzero"`
	// Entry and Values are those of the set's manager (see live.OwnFields); zero if
	// it owns no field.
	Entry  live.Hash `json:"e,omitzero"`
	Values live.Hash `json:"m,omitzero"`
	// Status and Others are the digests of all other managers (see live.Object).
	Status live.Hash `json:"s,omitzero"`
	Others live.Hash `json:"x,omitzero"`
	// Epoch is that of the kind's watch at the time of the apply, or EpochRead.
	Epoch int `json:"-"`
}

// Yield is a field that another controller changes against the manifest.
type Yield struct {
	// Pointer is the field's JSON pointer in the manifest.
	Pointer string `json:"p"`
	// Manager owns the field.
	Manager string `json:"m"`
	// Value is the hash of the manifest's value when the field was yielded: a
	// release that changes the value takes the field back.
	Value live.Hash `json:"v"`
}

// Taken is what another set knew of an object when it handed the object over.
type Taken struct {
	// From is the owner of that set.
	From string `json:"o"`
	// UID is the object's, "" if that set had never applied it; Created is true if
	// that set created it.
	UID     types.UID `json:"u,omitempty"`
	Created bool      `json:"c,omitempty"`
}

// Entry is one object of the inventory. Its JSON is one line of a shard; names
// are short because there is one line per object.
type Entry struct {
	Group     string `json:"g,omitempty"`
	Version   string `json:"v"`
	Kind      string `json:"k"`
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"n"`

	// RunLevel and Order are the object's position in the payload; pruning uses
	// the reverse order.
	RunLevel int `json:"l,omitempty"`
	Order    int `json:"o,omitempty"`
	// Created is true if the set created the object; pre-existing objects are
	// never pruned.
	Created bool `json:"c,omitempty"`
	// Confirmed is true if the manifest confirms pruning a kind that requires
	// it.
	Confirmed bool `json:"p,omitempty"`
	// Protected is true if the manifest forbids to prune the object. The next
	// payload may not contain the manifest any more, so the inventory remembers it.
	Protected bool `json:"pd,omitempty"`
	// Finished is true for a Job that completed.
	Finished bool `json:"f,omitempty"`
	// Failed is true for a Job with a TTL that failed.
	Failed bool `json:"ff,omitempty"`

	// Lost is true for an object that a former inventory of the set may have listed,
	// which was lost: it had the set's field manager before its first apply, or it
	// wasn't applied yet. The set doesn't know whether it created the object.
	Lost bool `json:"lo,omitempty"`
	// Taken is set until the first apply of an object that another set handed
	// over.
	Taken *Taken `json:"t,omitempty"`

	// Record is that of the last apply.
	Record

	// Yields are the fields that are left to other controllers.
	Yields []Yield `json:"y,omitempty"`
}

// NewEntry returns the entry of a manifest that was never applied.
func NewEntry(m *payload.Manifest) Entry {
	return Entry{
		Group: m.GVK.Group, Version: m.GVK.Version, Kind: m.GVK.Kind,
		Namespace: m.ID.Namespace, Name: m.ID.Name, RunLevel: m.RunLevel,
	}
}

// Describe copies the manifest's version, position and prune annotation, and
// reports whether they changed. A negative order keeps the current one.
func (e *Entry) Describe(m *payload.Manifest, order int) bool {
	before := [...]any{e.Version, e.RunLevel, e.Order, e.Confirmed, e.Protected}
	e.Version, e.RunLevel, e.Confirmed, e.Protected = m.GVK.Version, m.RunLevel, m.PruneConfirmed, m.PruneDisabled
	if order >= 0 {
		e.Order = order
	}
	return before != [...]any{e.Version, e.RunLevel, e.Order, e.Confirmed, e.Protected}
}

// ID returns the object's identity.
func (e *Entry) ID() payload.ObjectID {
	return payload.ObjectID{Group: e.Group, Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}
}

// GVK returns the version and kind that the object was applied in.
func (e *Entry) GVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: e.Group, Version: e.Version, Kind: e.Kind}
}

// Applied reports whether the set has applied the object.
func (e *Entry) Applied() bool { return e.UID != "" }

// AddYield adds a yield, unless its field is yielded already or MaxYields is
// reached, and reports whether it did.
func (e *Entry) AddYield(y Yield) bool {
	known := slices.ContainsFunc(e.Yields, func(have Yield) bool { return have.Pointer == y.Pointer })
	if known || len(e.Yields) >= MaxYields {
		return false
	}
	e.Yields = append(e.Yields, y)
	return true
}

// DropYields removes the yields that match, and reports whether there were any.
// Copies of the entry keep them.
func (e *Entry) DropYields(match func(Yield) bool) bool {
	left := slices.DeleteFunc(slices.Clone(e.Yields), match)
	dropped := len(left) != len(e.Yields)
	e.Yields = left
	return dropped
}

// ComparePosition orders entries as the payload does.
func ComparePosition(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.RunLevel, b.RunLevel), cmp.Compare(a.Order, b.Order), a.ID().Compare(b.ID()))
}

// HashOf returns the hash of a manifest's value, as Yield keeps it.
func HashOf(value any) live.Hash {
	raw, err := json.Marshal(value)
	if err != nil {
		return live.Hash{} // Unreachable: the value was decoded from JSON.
	}
	full := sha256.Sum256(raw)
	return live.Hash(full[:live.HashSize])
}

// encode writes one line per entry, ordered by identity, so that equal
// inventories are equal bytes.
func encode(entries []Entry) (string, error) {
	slices.SortStableFunc(entries, func(a, b Entry) int { return a.ID().Compare(b.ID()) })
	var b strings.Builder
	for i := range entries {
		line, err := json.Marshal(&entries[i])
		if err != nil {
			return "", fmt.Errorf("encode the inventory entry of %s: %w", entries[i].ID(), err)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// maxLine bounds the line of one object, in bytes, and maxEntries the lines of
// one shard.
const (
	maxLine    = 64 << 10
	maxEntries = 20_000
)

// decode reads what encode wrote. Unknown fields belong to a newer format and
// are ignored. An unreadable line is reported and skipped: its object is then
// adopted and never deleted.
func decode(data string) (entries []Entry, problems []string) {
	lines := bufio.NewScanner(strings.NewReader(data))
	lines.Buffer(nil, maxLine)
	n := 0
	for lines.Scan() {
		n++
		raw := bytes.TrimSpace(lines.Bytes())
		if len(raw) == 0 {
			continue
		}
		if len(entries) == maxEntries {
			return entries, append(problems, fmt.Sprintf("line %d: more than %d objects in one shard", n, maxEntries))
		}
		e := Entry{Record: Record{Epoch: EpochRead}}
		if err := json.Unmarshal(raw, &e); err != nil {
			problems = append(problems, fmt.Sprintf("line %d is no inventory entry", n))
			continue
		}
		if e.Kind == "" || e.Name == "" || e.Version == "" {
			problems = append(problems, fmt.Sprintf("line %d has no kind, version or name", n))
			continue
		}
		entries = append(entries, e)
	}
	if lines.Err() != nil {
		problems = append(problems, fmt.Sprintf("line %d is longer than %d bytes", n+1, maxLine))
	}
	return entries, problems
}
