// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// inventoryFormat is the version of the inventory that is written. Versions
// one below and one above are read too, so that two neighbouring releases of
// Lockstep can follow one another in either order: a version may only add
// fields.
const inventoryFormat = 1

// entry is what the inventory keeps of an object. Its JSON is one line of the
// inventory; names are short since there is one line an object.
type entry struct {
	Group     string `json:"g,omitempty"`
	Version   string `json:"v"`
	Kind      string `json:"k"`
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"n"`

	// RunLevel and Order are the object's place in the payload; pruning goes
	// backwards.
	RunLevel int `json:"l,omitempty"`
	Order    int `json:"o,omitempty"`
	// Created tells that the set made the object; what it found is never
	// pruned.
	Created bool `json:"c,omitempty"`
	// Confirmed repeats the manifest's consent to prune a kind that is kept
	// otherwise.
	Confirmed bool `json:"p,omitempty"`
	// Finished tells of a Job that it had completed.
	Finished bool `json:"f,omitempty"`
	// Failed tells of a Job with a TTL that it had failed.
	Failed bool `json:"ff,omitempty"`

	// The record of the last apply's answer; UID is "" before the first.
	UID             types.UID   `json:"u,omitempty"`
	ResourceVersion string      `json:"rv,omitempty"`
	Generation      int64       `json:"gen,omitempty"`
	Desired         live.Digest `json:"h,omitzero"`
	Entry           live.Digest `json:"e,omitzero"`
	Values          live.Digest `json:"m,omitzero"`
	Status          live.Digest `json:"s,omitzero"`
	Foreign         live.Digest `json:"x,omitzero"`

	Yields []Yield `json:"y,omitempty"`

	// epoch isn't kept: versions that were read back are from another life.
	epoch int
}

func newEntry(m *payload.Manifest) entry {
	return entry{
		Group: m.GVK.Group, Version: m.GVK.Version, Kind: m.GVK.Kind,
		Namespace: m.ID.Namespace, Name: m.ID.Name, RunLevel: m.RunLevel,
	}
}

// describe takes what the manifest says of the object's place and pruning. It
// reports whether that is new.
func (e *entry) describe(m *payload.Manifest, order int) bool {
	before := [...]any{e.Version, e.RunLevel, e.Order, e.Confirmed}
	e.Version, e.RunLevel, e.Confirmed = m.GVK.Version, m.RunLevel, m.PruneConfirmed
	if order >= 0 {
		e.Order = order
	}
	return before != [...]any{e.Version, e.RunLevel, e.Order, e.Confirmed}
}

func (e *entry) id() payload.ObjectID {
	return payload.ObjectID{Group: e.Group, Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}
}

func (e *entry) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: e.Group, Version: e.Version, Kind: e.Kind}
}

// applied reports whether the set applied the object ever.
func (e *entry) applied() bool { return e.UID != "" }

func (e *entry) record() Record {
	return Record{
		UID: e.UID, ResourceVersion: e.ResourceVersion, Generation: e.Generation,
		Desired: e.Desired, Entry: e.Entry, Values: e.Values, Status: e.Status, Foreign: e.Foreign, Epoch: e.epoch,
	}
}

func (e *entry) setRecord(r Record) {
	e.UID, e.ResourceVersion, e.Generation = r.UID, r.ResourceVersion, r.Generation
	e.Desired, e.Entry, e.Values, e.Status, e.Foreign = r.Desired, r.Entry, r.Values, r.Status, r.Foreign
	e.epoch = r.Epoch
}

// encodeEntries writes one line an object, in the order of their identities,
// so that equal inventories are equal bytes.
func encodeEntries(entries []entry) (string, error) {
	slices.SortStableFunc(entries, func(a, b entry) int { return a.id().Compare(b.id()) })
	var b strings.Builder
	for i := range entries {
		line, err := json.Marshal(&entries[i])
		if err != nil {
			return "", fmt.Errorf("encoding %s: %w", entries[i].id(), err)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// maxLine bounds one object's line, and maxEntries the lines of one shard.
const (
	maxLine    = 64 << 10
	maxEntries = 20_000
)

// decodeEntries reads what encodeEntries wrote. Fields that it doesn't know
// are of a newer version and are passed over. A line that can't be read is
// told and left out: the object is then adopted, never deleted.
func decodeEntries(data string) (entries []entry, problems []string) {
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
		e := entry{epoch: -1}
		if err := json.Unmarshal(raw, &e); err != nil {
			problems = append(problems, fmt.Sprintf("line %d isn't an inventory entry", n))
			continue
		}
		if e.Kind == "" || e.Name == "" || e.Version == "" {
			problems = append(problems, fmt.Sprintf("line %d lacks kind, version or name", n))
			continue
		}
		entries = append(entries, e)
	}
	if lines.Err() != nil {
		problems = append(problems, fmt.Sprintf("line %d is longer than %d bytes", n+1, maxLine))
	}
	return entries, problems
}
