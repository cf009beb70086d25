// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload"
)

func TestChangesAreQueuedOncePerObject(t *testing.T) {
	c := &Cache{notifier: newNotifier()}
	s := c.Subscribe(func(id payload.ObjectID) bool { return id.Name != "filtered" })
	a, b := payload.ObjectID{Name: "a"}, payload.ObjectID{Name: "b"}
	for range 1000 {
		c.notifier.notify(a)
		c.notifier.notify(b)
		c.notifier.notify(payload.ObjectID{Name: "filtered"})
	}
	var got []payload.ObjectID
	for id, more := s.Pop(); more; id, more = s.Pop() {
		got = append(got, id)
	}
	if len(got) != 2 || got[0] != a || got[1] != b {
		t.Errorf("got %v, want a and b once", got)
	}
	s.Close()
	c.notifier.notify(a)
	if _, more := s.Pop(); more {
		t.Error("notified after Close")
	}
}

func TestAwaitObservesAChangeBeforeItWaits(t *testing.T) {
	c := &Cache{notifier: newNotifier(), kinds: map[schema.GroupKind]*kind{}}
	calls := 0
	err := c.Await(t.Context(), payload.ObjectID{Name: "a"}, func(View) bool {
		if calls++; calls == 1 {
			c.notifier.notify(payload.ObjectID{Name: "a"}) // Between the check and the wait.
		}
		return calls == 2
	})
	if err != nil || calls != 2 {
		t.Errorf("err %v after %d calls", err, calls)
	}
}
