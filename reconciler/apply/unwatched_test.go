// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestApplyContinuesOnceATerminatingUnwatchedObjectIsGone(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	env.apply(ms, Updating)
	env.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "settings", metav1.DeleteOptions{}))
	env.wait = patience
	env.restartUnwatched()
	next := env.manifests(strings.Replace(webSet, `b: "2"`, `b: "3"`, 1))[:1]
	done := make(chan error, 1)
	go func() { _, err := env.engine.Apply(t.Context(), &next[0], Updating); done <- err }()
	env.await("the apply to detect the deletion", func() bool { return count(env.requests.peek(), "GET") > 1 })
	env.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":null}}`)
	began := time.Now()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(patience / 2):
		t.Fatalf("the apply still waits %s after the deletion", time.Since(began))
	}
	if b := env.get(ms[0].ID).Object["data"].(map[string]any)["b"]; b != "3" {
		t.Errorf("data.b is %q, want 3", b)
	}
}

// peek returns the requests since the last take.
func (c *counter) peek() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.requests...)
}

// Fields that other managers own on the terminating object are sent for its
// successor.
func TestSuccessorOfATerminatingObjectHasAllFields(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(ignoring(scaledText))
	env.apply(ms, Updating)
	uid := env.get(ms[0].ID).GetUID()
	env.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	background := metav1.DeletePropagationBackground
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &background}))
	env.wait = patience
	env.restartUnwatched()
	next := env.manifests(strings.Replace(ignoring(scaledText), "web:1", "web:2", 1))
	done := make(chan error, 1)
	go func() { _, err := env.engine.Apply(t.Context(), &next[0], Updating); done <- err }()
	env.await("the apply to detect the deletion", func() bool { return count(env.requests.peek(), "GET") > 4 })
	env.patch(ms[0].ID, "someone", `{"metadata":{"finalizers":null}}`)
	must(t, <-done)
	if env.get(ms[0].ID).GetUID() == uid {
		t.Fatal("the object wasn't recreated")
	}
	env.wantReplicas(ms[0].ID, 3, "of the recreated object")
}

func TestObjectDeletedDuringItsApplyIsRecreatedWithAllFields(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(ignoring(scaledText))
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	env.engine.set.sub.Close() // No repair in between.
	view := env.cache.Get(ms[0].ID)
	must(t, env.resource(ms[0].ID).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	where, err := env.engine.applier.locate(t.Context(), &ms[0])
	must(t, err)
	it := env.engine.set.item(ms[0].ID)
	it.busy.Lock()
	ch, err := env.engine.applier.write(t.Context(), &request{it: it, m: &ms[0], target: where, decision: decision{step: stepVerify, verdict: Unclear}}, view)
	it.busy.Unlock()
	must(t, err)
	if ch.UID == string(view.Object.UID) || ch.Adopted {
		t.Errorf("%+v, want a new object created by the set", ch)
	}
	env.wantReplicas(ms[0].ID, 3, "of the recreated object")
}
