// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package inventory

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

func newStore(client corev1client.ConfigMapInterface) *Store {
	return NewStore(client, "clusterrelease/web", "lockstep-system", &sync.RWMutex{})
}

// busyClient changes the set during each write, as a running sync does.
type busyClient struct {
	corev1client.ConfigMapInterface
	writes int
	during func()
	// refuse is the error of the first write.
	refuse error
}

func (b *busyClient) Create(_ context.Context, cm *corev1.ConfigMap, _ metav1.CreateOptions) (*corev1.ConfigMap, error) {
	if b.refuse != nil {
		err := b.refuse
		b.refuse = nil
		return nil, err
	}
	return b.write(cm), nil
}

func (b *busyClient) Update(_ context.Context, cm *corev1.ConfigMap, _ metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	return b.write(cm), nil
}

func (b *busyClient) write(cm *corev1.ConfigMap) *corev1.ConfigMap {
	if b.writes++; b.during != nil && b.writes < 20 { // The sync ends.
		b.during()
	}
	out := cm.DeepCopy()
	out.ResourceVersion = "1"
	return out
}

func TestFlushWritesOnceDuringARunningSync(t *testing.T) {
	t.Parallel()
	maps := &busyClient{}
	s := newStore(maps)
	slot := &Slot{Entry: Entry{Kind: "ConfigMap", Namespace: "web", Name: "a"}}
	s.Add(slot)
	maps.during = func() { s.Touch(slot) }
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if maps.writes != 1 {
		t.Errorf("%d writes, want 1: later changes are left to the next flush", maps.writes)
	}
	if !s.Dirty() {
		t.Error("a change during the write is lost")
	}
}

func TestShardsOfAFailedFlushAreWrittenLater(t *testing.T) {
	t.Parallel()
	maps := &busyClient{refuse: errors.New("the server is busy")}
	s := newStore(maps)
	for i := range shardEntries + 1 { // Two shards.
		s.Add(&Slot{Entry: Entry{Kind: "ConfigMap", Namespace: "web", Name: strconv.Itoa(i)}})
	}
	if err := s.Flush(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if maps.writes != 2 {
		t.Errorf("%d shards written after the first was refused, want 2", maps.writes)
	}
}

// crashingClient stores what is written, and fails after some writes as if the
// process had ended.
type crashingClient struct {
	corev1client.ConfigMapInterface
	stored map[string]*corev1.ConfigMap
	left   int
}

func (l *crashingClient) Create(_ context.Context, cm *corev1.ConfigMap, _ metav1.CreateOptions) (*corev1.ConfigMap, error) {
	return l.put(cm)
}

func (l *crashingClient) Update(_ context.Context, cm *corev1.ConfigMap, _ metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	return l.put(cm)
}

func (l *crashingClient) put(cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	if l.left--; l.left < 0 {
		return nil, errors.New("the process ended")
	}
	out := cm.DeepCopy()
	out.ResourceVersion = strconv.Itoa(l.left)
	l.stored[cm.Name] = out
	return out, nil
}

func (l *crashingClient) List(context.Context, metav1.ListOptions) (*corev1.ConfigMapList, error) {
	out := &corev1.ConfigMapList{}
	for _, name := range slices.Sorted(maps.Keys(l.stored)) {
		out.Items = append(out.Items, *l.stored[name])
	}
	return out, nil
}

// addLarge adds slots with lines so long that a few hundred of them exceed a
// shard's bytes.
func addLarge(s *Store, n int) []*Slot {
	slots := make([]*Slot, n)
	for i := range slots {
		slots[i] = &Slot{Entry: Entry{Version: "v1", Kind: "ConfigMap", Namespace: "web", Name: fmt.Sprintf("%04d", i)}}
		for range MaxYields {
			slots[i].Yields = append(slots[i].Yields, Yield{Pointer: "/spec/" + strings.Repeat("x", 150)})
		}
		s.Add(slots[i])
	}
	return slots
}

func TestACrashDuringASplitLosesNoObject(t *testing.T) {
	t.Parallel()
	const objects = 400
	for writes := 1; ; writes++ {
		maps := &crashingClient{stored: map[string]*corev1.ConfigMap{}, left: 1 << 20}
		s := newStore(maps)
		slots := addLarge(s, objects)
		for _, slot := range slots {
			slot.Yields = slot.Yields[:1]
		}
		if err := s.Flush(t.Context()); err != nil || len(maps.stored) != 1 {
			t.Fatalf("%d shards before the objects grew, %v", len(maps.stored), err)
		}
		for _, slot := range slots {
			slot.Yields = slot.Yields[:MaxYields]
			s.Touch(slot)
		}
		maps.left = writes
		err := s.Flush(t.Context())
		known := map[payload.ObjectID]bool{}
		for name, cm := range maps.stored {
			if size := len(cm.Data[keyEntries]); size > shardBytes {
				t.Errorf("%s holds %d bytes", name, size)
			}
			entries, problems := decode(cm.Data[keyEntries])
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			for i := range entries {
				known[entries[i].ID()] = true
			}
		}
		if len(known) != objects {
			t.Errorf("%d objects are known after a crash following write %d of the split, want %d", len(known), writes, objects)
		}
		if err == nil {
			if len(maps.stored) < 3 {
				t.Errorf("%d shards: no shard was split twice", len(maps.stored))
			}
			return
		}
	}
}
