// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDyingObjectOfAnUnwatchedKindIsWaitedForNoLongerThanItTakes(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[:1]
	r.apply(ms, Updating)
	r.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	must(t, r.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	r.wait = patience
	r.blind()
	next := r.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1))[:1]
	done := make(chan error, 1)
	go func() { _, err := r.engine.Apply(t.Context(), &next[0], Updating); done <- err }()
	r.await("the apply to see that the object dies", func() bool { return count(r.requests.peek(), "GET") > 1 })
	r.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":null}}`)
	began := time.Now()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(patience / 2):
		t.Fatalf("the apply waits %s after the object was gone", time.Since(began))
	}
	if b := r.get(ms[0].ID).Object["data"].(map[string]any)["b"]; b != "3" {
		t.Errorf("data.b is %q, want 3", b)
	}
}

// peek returns the requests since the last take.
func (c *counter) peek() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.seen...)
}
