// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"cmp"
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
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
)

const (
	// noShard is the shard of an object that isn't in the inventory.
	noShard = -1
	// shardEntries is the number of objects that a shard takes.
	shardEntries = 1000
	// shardBytes is the most that a shard may hold; etcd takes 1.5 MiB.
	shardBytes = 512 << 10
	// maxShards bounds the shards that are read.
	maxShards = 256

	labelInventory = "lockstep.dev/inventory"
	keyFormat      = "format"
	keyOwner       = "owner"
	keyShard       = "shard"
	keyEntries     = "entries"
)

// store keeps the inventory in ConfigMaps, the shards.
type store struct {
	client corev1client.ConfigMapInterface
	owner  string
	prefix string
	label  string
	// namespace is where the shards are, id the identity of the ApplySet.
	namespace, id string

	// writing is held while shards are written, so that they are written in
	// order.
	writing sync.Mutex

	mu     sync.Mutex
	shards []*shard
}

// errOtherWriter is the cause of a refused write.
var errOtherWriter = errors.New("somebody else wrote the inventory")

// shard is one ConfigMap.
type shard struct {
	version string // resourceVersion; "" before it exists
	dirty   bool
	count   int
}

type loaded struct {
	entry entry
	shard int
}

func newStore(client corev1client.ConfigMapInterface, owner, namespace string) *store {
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
	s := &store{client: client, owner: owner, prefix: "lockstep-inventory-" + name, label: label, namespace: namespace}
	s.id = applySetID(s.name(0), namespace)
	return s
}

func (s *store) name(shard int) string { return s.prefix + "-" + strconv.Itoa(shard) }

// load reads all shards.
func (s *store) load(ctx context.Context) ([]loaded, []string, error) {
	s.mu.Lock()
	s.shards = nil
	s.mu.Unlock()
	return s.read(ctx)
}

// reload reads what somebody else wrote; all shards are to be written again.
func (s *store) reload(ctx context.Context) ([]loaded, error) {
	out, _, err := s.read(ctx) // What is unreadable is overwritten.
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		sh.dirty = true
	}
	return out, err
}

func (s *store) read(ctx context.Context) ([]loaded, []string, error) {
	list, err := s.client.List(ctx, metav1.ListOptions{LabelSelector: labelInventory + "=" + s.label})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the inventory of %s: %w", s.owner, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []loaded
	var problems []string
	for i := range list.Items {
		cm := &list.Items[i]
		if cm.Data[keyOwner] != s.owner {
			continue // Another set whose label was cut to the same.
		}
		n, err := strconv.Atoi(cm.Data[keyShard])
		if err != nil || n < 0 || n >= maxShards || cm.Name != s.name(n) {
			problems = append(problems, fmt.Sprintf("ConfigMap %s isn't a shard of this inventory", cm.Name))
			continue
		}
		if format, err := strconv.Atoi(cm.Data[keyFormat]); err != nil || format < inventoryFormat-1 || format > inventoryFormat+1 {
			return nil, nil, permanent(payload.ObjectID{}, ReasonInventoryFailed,
				"ConfigMap %s has inventory format %.20q; this version reads %d to %d: run the version that wrote it",
				cm.Name, cm.Data[keyFormat], inventoryFormat-1, inventoryFormat+1)
		}
		entries, bad := decodeEntries(cm.Data[keyEntries])
		for _, b := range bad {
			problems = append(problems, fmt.Sprintf("ConfigMap %s: %s", cm.Name, b))
		}
		s.growLocked(n)
		s.shards[n].version, s.shards[n].count = cm.ResourceVersion, max(s.shards[n].count, len(entries))
		for _, e := range entries {
			out = append(out, loaded{entry: e, shard: n})
		}
	}
	return out, problems, nil
}

func (s *store) growLocked(n int) {
	for len(s.shards) <= n {
		s.shards = append(s.shards, &shard{})
	}
}

// place gives the object a shard. The engine's lock is held.
func (s *store) place(it *item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := slices.IndexFunc(s.shards, func(sh *shard) bool { return sh.count < shardEntries })
	if n < 0 {
		n = len(s.shards)
		s.growLocked(n)
	}
	it.shard = n
	s.shards[n].count++
	s.shards[n].dirty = true
	s.shards[0].dirty = true // It says what kinds there are.
}

// touch marks the object's shard as changed.
func (s *store) touch(it *item) {
	if it.shard == noShard {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shards[it.shard].dirty = true
}

// rewrite marks a shard as changed that holds an object which another has too:
// a process ended in the middle of a split.
func (s *store) rewrite(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shards[n].count--
	s.shards[n].dirty = true
}

// unplace takes the object out of its shard. The engine's lock is held.
func (s *store) unplace(it *item) {
	if it.shard == noShard {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shards[it.shard].dirty = true
	s.shards[it.shard].count--
	it.shard = noShard
}

// dirty reports whether anything is to be written.
func (s *store) dirty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.shards, func(sh *shard) bool { return sh.dirty })
}

// flush writes the shards that changed. items are guarded by lock. What changes
// meanwhile is for the next flush: a pass that is under way changes a shard
// faster than it can be written. The last shard goes first: a split moves
// objects to a later shard, and must not take them out of theirs before they
// are in it.
func (s *store) flush(ctx context.Context, lock *sync.RWMutex, items map[payload.ObjectID]*item) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	for again := true; again && s.dirty(); {
		again = false
		contents, annotations := s.collect(lock, items)
		for _, n := range slices.Backward(slices.Sorted(maps.Keys(contents))) {
			data, err := encodeEntries(contents[n])
			if err != nil {
				s.unwritten(contents)
				return err
			}
			if len(data) > shardBytes && len(contents[n]) > 1 {
				s.split(n, contents[n], lock, items)
				again = true
				continue
			}
			if err := s.write(ctx, n, data, annotations); err != nil {
				s.unwritten(contents)
				return err
			}
		}
	}
	return nil
}

// unwritten has all that was collected written again: the shards after the one
// that failed weren't.
func (s *store) unwritten(contents map[int][]entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range contents {
		s.shards[n].dirty = true
	}
}

// collect copies the entries of the shards that changed and marks them as
// written.
func (s *store) collect(lock *sync.RWMutex, items map[payload.ObjectID]*item) (contents map[int][]entry, parent map[string]string) {
	lock.RLock()
	defer lock.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[int][]entry{}
	for n, sh := range s.shards {
		if sh.dirty {
			out[n], sh.dirty = nil, false
		}
	}
	var all []entry
	for _, it := range items {
		if _, first := out[0]; first && it.shard != noShard {
			all = append(all, entry{Group: it.entry.Group, Kind: it.entry.Kind, Namespace: it.entry.Namespace})
		}
		if _, changed := out[it.shard]; changed {
			e := it.entry
			e.Yields = slices.Clone(e.Yields)
			out[it.shard] = append(out[it.shard], e)
		}
	}
	return out, parentAnnotations(all, s.namespace)
}

// split moves half of a shard that grew too big into a new one.
func (s *store) split(n int, entries []entry, lock *sync.RWMutex, items map[payload.ObjectID]*item) {
	lock.Lock()
	defer lock.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	next := len(s.shards)
	s.growLocked(next)
	for _, e := range entries[len(entries)/2:] {
		if it := items[e.id()]; it != nil && it.shard == n {
			it.shard = next
			s.shards[n].count--
			s.shards[next].count++
		}
	}
	s.shards[n].count = max(s.shards[n].count, shardEntries) // It takes no more.
	s.shards[n].dirty, s.shards[next].dirty = true, true
}

// write creates or updates one shard. Its resourceVersion is that of our last
// write, so that of two writers one is refused.
func (s *store) write(ctx context.Context, n int, data string, parent map[string]string) error {
	s.mu.Lock()
	version := s.shards[n].version
	s.mu.Unlock()
	shard := s.shard(n, data, parent)
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

// shard makes the ConfigMap. The first is the parent of the ApplySet.
func (s *store) shard(n int, data string, parent map[string]string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: s.name(n), Labels: map[string]string{labelInventory: s.label}},
		Data: map[string]string{
			keyFormat: strconv.Itoa(inventoryFormat), keyOwner: s.owner, keyShard: strconv.Itoa(n), keyEntries: data,
		},
	}
	if n == 0 {
		cm.Labels[labelApplySetID] = s.id
		cm.Annotations = parent
	}
	return cm
}

// put creates the shard if it has no version, else updates it.
func (s *store) put(ctx context.Context, cm *corev1.ConfigMap, version string) (written *corev1.ConfigMap, err error) {
	cm.ResourceVersion = version
	if version == "" {
		written, err = s.client.Create(ctx, cm, metav1.CreateOptions{FieldManager: "lockstep-reconciler"})
	} else {
		written, err = s.client.Update(ctx, cm, metav1.UpdateOptions{FieldManager: "lockstep-reconciler"})
	}
	if err != nil {
		return nil, fmt.Errorf("writing the inventory ConfigMap %s: %w", cm.Name, err)
	}
	return written, nil
}

// putAgain writes a shard that isn't as we left it, if nobody else wrote it:
// somebody deleted it, or a restore of etcd brought an older version back.
func (s *store) putAgain(ctx context.Context, cm *corev1.ConfigMap, version string, refusal error) (*corev1.ConfigMap, error) {
	there, err := s.client.Get(ctx, cm.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return s.put(ctx, cm, "")
	case err != nil:
		return nil, fmt.Errorf("reading the inventory ConfigMap %s: %w", cm.Name, err)
	case version != "" && older(there.ResourceVersion, version):
		return s.put(ctx, cm, there.ResourceVersion)
	default:
		return nil, &Error{
			reason: ReasonInventoryFailed, retriable: true, err: errors.Join(errOtherWriter, refusal),
			message: fmt.Sprintf("inventory ConfigMap %s was written by somebody else; another reconciler may be running", cm.Name),
		}
	}
}

// destroy deletes all shards.
func (s *store) destroy(ctx context.Context) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	n := len(s.shards)
	s.mu.Unlock()
	for i := range n {
		if err := s.client.Delete(ctx, s.name(i), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting the inventory ConfigMap %s: %w", s.name(i), err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shards = nil
	return nil
}

// byPlace orders entries as the payload does.
func byPlace(a, b entry) int {
	return cmp.Or(cmp.Compare(a.RunLevel, b.RunLevel), cmp.Compare(a.Order, b.Order), a.id().Compare(b.id()))
}
