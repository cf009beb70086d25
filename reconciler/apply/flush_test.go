// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
)

// busyMaps takes what is written and has the set change meanwhile, as a pass
// that is under way does.
type busyMaps struct {
	corev1client.ConfigMapInterface
	writes int
	during func()
	// refuse fails the first write.
	refuse error
}

func (b *busyMaps) Create(_ context.Context, cm *corev1.ConfigMap, _ metav1.CreateOptions) (*corev1.ConfigMap, error) {
	if b.refuse != nil {
		err := b.refuse
		b.refuse = nil
		return nil, err
	}
	return b.take(cm), nil
}

func (b *busyMaps) Update(_ context.Context, cm *corev1.ConfigMap, _ metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	return b.take(cm), nil
}

func (b *busyMaps) take(cm *corev1.ConfigMap) *corev1.ConfigMap {
	if b.writes++; b.during != nil && b.writes < 20 { // The pass ends at some time.
		b.during()
	}
	out := cm.DeepCopy()
	out.ResourceVersion = "1"
	return out
}

func TestAFlushWritesOnceThoughAPassGoesOn(t *testing.T) {
	t.Parallel()
	maps := &busyMaps{}
	s := newStore(maps, "clusterrelease/web", ownNamespace)
	id := payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: "a"}
	it := &item{id: id, shard: noShard, entry: entry{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}}
	s.place(it)
	maps.during = func() { s.touch(it) }
	var lock sync.RWMutex
	if err := s.flush(t.Context(), &lock, map[payload.ObjectID]*item{id: it}); err != nil {
		t.Fatal(err)
	}
	if maps.writes != 1 {
		t.Errorf("%d writes, want 1: the rest is for the next flush", maps.writes)
	}
	if !s.dirty() {
		t.Error("what changed during the write is forgotten")
	}
}

func TestAFailedFlushForgetsNoShard(t *testing.T) {
	t.Parallel()
	maps := &busyMaps{refuse: errors.New("the server is busy")}
	s := newStore(maps, "clusterrelease/web", ownNamespace)
	items := map[payload.ObjectID]*item{}
	for i := range shardEntries + 1 { // Two shards.
		id := payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: strconv.Itoa(i)}
		items[id] = &item{id: id, shard: noShard, entry: entry{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}}
		s.place(items[id])
	}
	var lock sync.RWMutex
	if err := s.flush(t.Context(), &lock, items); err == nil {
		t.Fatal("the refusal is lost")
	}
	if err := s.flush(t.Context(), &lock, items); err != nil {
		t.Fatal(err)
	}
	if maps.writes != 2 {
		t.Errorf("%d shards written after the first was refused, want 2", maps.writes)
	}
}

// twoLives keeps what is written, and can end the process after some writes.
type twoLives struct {
	corev1client.ConfigMapInterface
	stored map[string]*corev1.ConfigMap
	left   int
}

func (l *twoLives) Create(_ context.Context, cm *corev1.ConfigMap, _ metav1.CreateOptions) (*corev1.ConfigMap, error) {
	return l.put(cm)
}

func (l *twoLives) Update(_ context.Context, cm *corev1.ConfigMap, _ metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	return l.put(cm)
}

func (l *twoLives) put(cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	if l.left--; l.left < 0 {
		return nil, errors.New("the process is gone")
	}
	out := cm.DeepCopy()
	out.ResourceVersion = strconv.Itoa(l.left)
	l.stored[cm.Name] = out
	return out, nil
}

func (l *twoLives) List(context.Context, metav1.ListOptions) (*corev1.ConfigMapList, error) {
	out := &corev1.ConfigMapList{}
	for _, name := range slices.Sorted(maps.Keys(l.stored)) {
		out.Items = append(out.Items, *l.stored[name])
	}
	return out, nil
}

// wideItems are objects whose lines are so long that a few hundred fill a
// shard by its bytes.
func wideItems(s *store, n int) map[payload.ObjectID]*item {
	items := map[payload.ObjectID]*item{}
	for i := range n {
		id := payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: fmt.Sprintf("%04d", i)}
		it := &item{id: id, shard: noShard, entry: entry{Version: "v1", Kind: id.Kind, Namespace: id.Namespace, Name: id.Name}}
		for range maxYields {
			it.entry.Yields = append(it.entry.Yields, Yield{Pointer: "/spec/" + strings.Repeat("x", 150)})
		}
		items[id] = it
		s.place(it)
	}
	return items
}

func TestAProcessThatDiesInTheMiddleOfASplitForgetsNoObject(t *testing.T) {
	t.Parallel()
	const objects = 400
	for writes := 1; ; writes++ {
		maps := &twoLives{stored: map[string]*corev1.ConfigMap{}, left: 1 << 20}
		s := newStore(maps, "clusterrelease/web", ownNamespace)
		items := wideItems(s, objects)
		for _, it := range items {
			it.entry.Yields = it.entry.Yields[:1]
		}
		var lock sync.RWMutex
		if err := s.flush(t.Context(), &lock, items); err != nil || len(maps.stored) != 1 {
			t.Fatalf("%d shards before the objects grew, %v", len(maps.stored), err)
		}
		for _, it := range items {
			it.entry.Yields = it.entry.Yields[:maxYields]
			s.touch(it)
		}
		maps.left = writes
		err := s.flush(t.Context(), &lock, items)
		known := map[payload.ObjectID]bool{}
		for name, cm := range maps.stored {
			if size := len(cm.Data[keyEntries]); size > shardBytes {
				t.Errorf("%s holds %d bytes", name, size)
			}
			entries, problems := decodeEntries(cm.Data[keyEntries])
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			for i := range entries {
				known[entries[i].id()] = true
			}
		}
		if len(known) != objects {
			t.Errorf("%d objects are known after a crash behind write %d of the split, want %d", len(known), writes, objects)
		}
		if err == nil {
			if len(maps.stored) < 3 {
				t.Errorf("%d shards in the end: nothing was split twice", len(maps.stored))
			}
			return
		}
	}
}

func TestAnObjectInTwoShardsIsTakenOutOfOne(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)
	r.apply(ms, Updating)
	r.kill()
	maps := r.kube.CoreV1().ConfigMaps(ownNamespace)
	first, err := maps.Get(t.Context(), r.engine.store.name(0), metav1.GetOptions{})
	must(t, err)
	second := r.engine.store.shard(1, first.Data[keyEntries], nil)
	_, err = maps.Create(t.Context(), second, metav1.CreateOptions{})
	must(t, err)
	r.start()
	r.apply(ms, Reconciling)
	must(t, r.engine.Flush(t.Context()))
	lines := 0
	list, err := maps.List(t.Context(), metav1.ListOptions{LabelSelector: labelInventory + "=" + r.engine.store.label})
	must(t, err)
	for i := range list.Items {
		entries, _ := decodeEntries(list.Items[i].Data[keyEntries])
		lines += len(entries)
	}
	if lines != len(ms) {
		t.Errorf("%d lines for %d objects", lines, len(ms))
	}
}
