// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"strconv"
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
