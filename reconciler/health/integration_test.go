// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

func TestWaitReactsToWatchEvents(t *testing.T) {
	cluster := controlplane.Shared(t)
	cache, err := live.New(live.Config{REST: cluster.Config, Now: time.Now, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan struct{})
	go func() { defer close(done); _ = cache.Start(ctx) }()
	defer func() { cancel(); <-done }()
	checker, err := NewChecker(cache, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	jobs := dynamic.NewForConfigOrDie(cluster.Config).Resource(schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}).Namespace("default")
	object := decode(t, `
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, namespace: default}
spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: x, image: example.com/x}]}}}`)
	m, err := payload.NewManifest(object)
	if err != nil {
		t.Fatal(err)
	}
	created, err := jobs.Create(ctx, object.DeepCopy(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var late *Error
	if err := checker.Wait(ctx, &m, created.GetResourceVersion(), Budget{Total: time.Hour, Spent: time.Hour - 300*time.Millisecond}, nil); !errors.As(err, &late) || late.Reason() != ReasonDeadlineExceeded {
		t.Fatalf("err = %v, want the deadline", err)
	}
	result := make(chan error, 1)
	verdicts := make(chan Verdict, 100)
	go func() {
		result <- checker.Wait(ctx, &m, created.GetResourceVersion(), Budget{Total: 30 * time.Second}, func(v Verdict, _ time.Duration) { verdicts <- v })
	}()
	for v := range verdicts {
		if v.Reason == "JobSuspended" || v.Reason == "JobRunning" {
			break
		}
	}
	now := time.Now().UTC().Format(time.RFC3339)
	body := []byte(`{"spec":{"suspend":false}}`)
	if _, err := jobs.Patch(ctx, "migrate", types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// The controller may have counted pods already; a finished Job must have none.
	patch := `{"status":{"active":null,"ready":null,"terminating":null,"uncountedTerminatedPods":null,"startTime":"` + now + `","completionTime":"` + now + `","succeeded":1,"conditions":[` +
		`{"type":"SuccessCriteriaMet","status":"True","lastTransitionTime":"` + now + `"},{"type":"Complete","status":"True","lastTransitionTime":"` + now + `"}]}}`
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := jobs.Patch(ctx, "migrate", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		elapse(t, 50*time.Millisecond)
	}
	if err := <-result; err != nil {
		t.Errorf("Wait: %v", err)
	}
}

// elapse waits for d in real time, or until the test ends.
func elapse(tb testing.TB, d time.Duration) {
	tb.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-tb.Context().Done():
	}
}
