// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
)

const (
	// shardEntries is the number of objects per shard.
	shardEntries = 1000
	// shardBytes bounds the entries of a shard; etcd accepts 1.5 MiB.
	shardBytes = 512 << 10
	// maxShards bounds the shards that are read.
	maxShards = 256

	labelInventory = "lockstep.dev/inventory"
	keyFormat      = "format"
	keyOwner       = "owner"
	keyShard       = "shard"
	keyEntries     = "entries"
)

// Store writes the inventory of one set. Its methods may be called
// concurrently.
type Store struct {
	client corev1client.ConfigMapInterface
	owner  string
	prefix string
	label  string
	// namespace contains the shards; id is that of the ApplySet.
	namespace, id string
	// entries guards the content of all slots. It is acquired before mu.
	entries *sync.RWMutex

	// writing serializes the writes of shards.
	writing sync.Mutex

	mu     sync.Mutex
	shards []*shard
	slots  map[*Slot]struct{} // Those that are stored.
}

// Slot is an entry that may be stored. Both its content and its place are
// guarded by the lock that NewStore got.
type Slot struct {
	Entry

	shard *shard // nil if it isn't stored
}

// Stored reports whether the entry is in the inventory.
func (s *Slot) Stored() bool { return s.shard != nil }

// shard is one ConfigMap.
type shard struct {
	number  int
	version string // resourceVersion; "" before it exists
	dirty   bool
	count   int
}

// Error is a problem with the stored inventory.
type Error struct {
	retriable bool
	message   string
	err       error
}

// Error returns the problem and how to solve it.
func (e *Error) Error() string { return e.message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Retriable reports whether the problem may resolve without a change.
func (e *Error) Retriable() bool { return e.retriable }

// ErrOtherWriter is the cause of a conflict with another writer.
var ErrOtherWriter = errors.New("another process wrote the inventory")

// NewStore returns a store of the set's shards in namespace, which the client
// must be limited to. lock guards the slots: their owner holds it for the methods
// that require it, and must not hold it otherwise.
func NewStore(client corev1client.ConfigMapInterface, owner, namespace string, lock *sync.RWMutex) *Store {
	name := strings.ReplaceAll(owner, "/", "-")
	digest := sha256.Sum256([]byte(owner))
	short := hex.EncodeToString(digest[:6])
	label := name
	if len(label) > 63 {
		label = label[:50] + "-" + short
	}
	if len(name) > 200 {
		name = name[:180] + "-" + short
	}
	s := &Store{
		client: client, owner: owner, prefix: "lockstep-inventory-" + name, label: label, namespace: namespace,
		entries: lock, slots: map[*Slot]struct{}{},
	}
	s.id = applySetID(s.name(0), namespace)
	return s
}

func (s *Store) name(shard int) string { return s.prefix + "-" + strconv.Itoa(shard) }

// Load reads all shards. Its caller passes each slot to Keep or Drop. It is called
// once, before any other method.
func (s *Store) Load(ctx context.Context) (slots []*Slot, problems []string, err error) {
	s.mu.Lock()
	s.shards = nil
	s.mu.Unlock()
	return s.read(ctx)
}

// Reload reads the shards after another process wrote them, as Load does, and
// marks all of them for writing. Unreadable lines are overwritten.
func (s *Store) Reload(ctx context.Context) ([]*Slot, error) {
	slots, _, err := s.read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		sh.dirty = true
	}
	return slots, err
}

func (s *Store) read(ctx context.Context) (slots []*Slot, problems []string, err error) {
	list, err := s.client.List(ctx, metav1.ListOptions{LabelSelector: labelInventory + "=" + s.label})
	if err != nil {
		return nil, nil, fmt.Errorf("list the inventory ConfigMaps of %s: %w", s.owner, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range list.Items {
		cm := &list.Items[i]
		if cm.Data[keyOwner] != s.owner {
			continue // A set whose label is shortened to the same.
		}
		n, err := strconv.Atoi(cm.Data[keyShard])
		if err != nil || n < 0 || n >= maxShards || cm.Name != s.name(n) {
			problems = append(problems, fmt.Sprintf("ConfigMap %s is no shard of this inventory", cm.Name))
			continue
		}
		if !readable(cm.Data[keyFormat]) {
			return nil, nil, &Error{message: fmt.Sprintf(
				"ConfigMap %s: inventory format %.20q isn't supported: this version reads %d to %d; run the version that wrote it",
				cm.Name, cm.Data[keyFormat], format-1, format+1)}
		}
		entries, bad := decode(cm.Data[keyEntries])
		for _, b := range bad {
			problems = append(problems, fmt.Sprintf("ConfigMap %s: %s", cm.Name, b))
		}
		sh := s.growLocked(n)
		sh.version, sh.count = cm.ResourceVersion, max(sh.count, len(entries))
		for _, e := range entries {
			slots = append(slots, &Slot{Entry: e, shard: sh})
		}
	}
	return slots, problems, nil
}

// growLocked returns shard n, and adds those that are missing up to it.
func (s *Store) growLocked(n int) *shard {
	for len(s.shards) <= n {
		s.shards = append(s.shards, &shard{number: len(s.shards)})
	}
	return s.shards[n]
}

// Keep stores a loaded slot. The lock is held.
func (s *Store) Keep(loaded *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots[loaded] = struct{}{}
}

// Drop discards a loaded slot whose object known represents. If both are stored
// in different shards, because a process ended during a split, the loaded one is
// removed from its shard. The lock is held.
func (s *Store) Drop(loaded, known *Slot) {
	if !known.Stored() || known.shard.number == loaded.shard.number {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	loaded.shard.count--
	loaded.shard.dirty = true
}

// Add stores the slot. The lock is held.
func (s *Store) Add(slot *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := slices.IndexFunc(s.shards, func(sh *shard) bool { return sh.count < shardEntries })
	if n < 0 {
		n = len(s.shards)
	}
	slot.shard = s.growLocked(n)
	slot.shard.count++
	slot.shard.dirty = true
	s.shards[0].dirty = true // The parent lists the kinds.
	s.slots[slot] = struct{}{}
}

// Touch marks the slot as changed. The lock is held.
func (s *Store) Touch(slot *Slot) {
	if !slot.Stored() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	slot.shard.dirty = true
}

// Remove removes the slot from the inventory. The lock is held.
func (s *Store) Remove(slot *Slot) {
	if !slot.Stored() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	slot.shard.dirty = true
	slot.shard.count--
	slot.shard = nil
	delete(s.slots, slot)
}

// Dirty reports whether a Flush would write.
func (s *Store) Dirty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.shards, func(sh *shard) bool { return sh.dirty })
}

// Flush writes the shards that changed. Changes during a flush are left to the
// next one: a running sync changes shards faster than they can be written. An
// *Error with the cause ErrOtherWriter requires a Reload.
func (s *Store) Flush(ctx context.Context) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	for again := true; again && s.Dirty(); {
		again = false
		contents, annotations := s.collect()
		// The last shard first: a split moves entries to a later shard, where
		// they must be written before they are removed from theirs.
		for _, n := range slices.Backward(slices.Sorted(maps.Keys(contents))) {
			data, err := encode(contents[n])
			if err != nil {
				s.notWritten(contents)
				return err
			}
			if len(data) > shardBytes && len(contents[n]) > 1 {
				s.split(n, contents[n])
				again = true
				continue
			}
			if err := s.write(ctx, n, data, annotations); err != nil {
				s.notWritten(contents)
				return err
			}
		}
	}
	return nil
}

// notWritten marks the collected shards as changed again.
func (s *Store) notWritten(contents map[int][]Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range contents {
		s.shards[n].dirty = true
	}
}

// collect copies the entries of the changed shards and marks these as written.
func (s *Store) collect() (contents map[int][]Entry, parent map[string]string) {
	s.entries.RLock()
	defer s.entries.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[int][]Entry{}
	for n, sh := range s.shards {
		if sh.dirty {
			out[n], sh.dirty = nil, false
		}
	}
	var all []Entry
	for slot := range s.slots {
		if _, first := out[0]; first {
			all = append(all, Entry{Group: slot.Group, Kind: slot.Kind, Namespace: slot.Namespace})
		}
		if _, changed := out[slot.shard.number]; changed {
			e := slot.Entry
			e.Yields = slices.Clone(e.Yields)
			out[slot.shard.number] = append(out[slot.shard.number], e)
		}
	}
	return out, parentAnnotations(all, s.namespace)
}

// split moves half of the entries of a shard that is too large to a new one.
func (s *Store) split(n int, entries []Entry) {
	s.entries.Lock()
	defer s.entries.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	moving := map[payload.ObjectID]bool{}
	for _, e := range entries[len(entries)/2:] {
		moving[e.ID()] = true
	}
	next := s.growLocked(len(s.shards))
	for slot := range s.slots {
		if slot.shard.number == n && moving[slot.ID()] {
			slot.shard = next
			s.shards[n].count--
			next.count++
		}
	}
	s.shards[n].count = max(s.shards[n].count, shardEntries) // It accepts no more.
	s.shards[n].dirty, next.dirty = true, true
}

// write creates or updates one shard. The resourceVersion is that of the last
// write, so that the second of two writers gets a conflict.
func (s *Store) write(ctx context.Context, n int, data string, parent map[string]string) error {
	s.mu.Lock()
	version := s.shards[n].version
	s.mu.Unlock()
	shard := s.configMap(n, data, parent)
	cm, err := s.put(ctx, shard, version)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		cm, err = s.putAgain(ctx, shard, version, err)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shards[n].version = cm.ResourceVersion
	return nil
}

// configMap returns shard n. Shard 0 is the parent of the ApplySet.
func (s *Store) configMap(n int, data string, parent map[string]string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: s.name(n), Labels: map[string]string{labelInventory: s.label}},
		Data: map[string]string{
			keyFormat: strconv.Itoa(format), keyOwner: s.owner, keyShard: strconv.Itoa(n), keyEntries: data,
		},
	}
	if n == 0 {
		cm.Labels[labelApplySetID] = s.id
		cm.Annotations = parent
	}
	return cm
}

// put updates the ConfigMap in the given version, or creates it if that is "".
func (s *Store) put(ctx context.Context, cm *corev1.ConfigMap, version string) (written *corev1.ConfigMap, err error) {
	cm.ResourceVersion = version
	if version == "" {
		written, err = s.client.Create(ctx, cm, metav1.CreateOptions{FieldManager: "lockstep-reconciler"})
	} else {
		written, err = s.client.Update(ctx, cm, metav1.UpdateOptions{FieldManager: "lockstep-reconciler"})
	}
	if err != nil {
		return nil, fmt.Errorf("write inventory ConfigMap %s: %w", cm.Name, err)
	}
	return written, nil
}

// putAgain resolves a conflict that no other writer caused: the shard was
// deleted, or an etcd restore replaced it with an older version.
func (s *Store) putAgain(ctx context.Context, cm *corev1.ConfigMap, version string, refusal error) (*corev1.ConfigMap, error) {
	current, err := s.client.Get(ctx, cm.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return s.put(ctx, cm, "")
	case err != nil:
		return nil, fmt.Errorf("read inventory ConfigMap %s: %w", cm.Name, err)
	}
	if order, err := resourceversion.CompareResourceVersion(current.ResourceVersion, version); version != "" && err == nil && order < 0 {
		return s.put(ctx, cm, current.ResourceVersion)
	}
	return nil, &Error{
		retriable: true, err: errors.Join(ErrOtherWriter, refusal),
		message: fmt.Sprintf("write inventory ConfigMap %s: another process wrote it; check that only one reconciler is running", cm.Name),
	}
}

// Destroy deletes all shards.
func (s *Store) Destroy(ctx context.Context) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	n := len(s.shards)
	s.mu.Unlock()
	for i := range n {
		if err := s.client.Delete(ctx, s.name(i), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete inventory ConfigMap %s: %w", s.name(i), err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shards = nil
	return nil
}
