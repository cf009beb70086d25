// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

// runningChecker returns a Checker with a running cache of the shared cluster,
// and a context that ends with the test.
func runningChecker(t *testing.T) (context.Context, *controlplane.Cluster, *Checker) {
	t.Helper()
	cluster := controlplane.Shared(t)
	cache, err := live.New(live.Config{REST: cluster.Config, Now: time.Now, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan struct{})
	go func() { defer close(done); _ = cache.Start(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	checker, err := NewChecker(cache, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, cluster, checker
}

// create creates an object and returns its manifest and resource version.
func create(t *testing.T, c dynamic.ResourceInterface, text string) (*payload.Manifest, Applied) {
	t.Helper()
	object := decode(t, text)
	created, err := c.Create(t.Context(), object.DeepCopy(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := payload.NewManifest(object)
	if err != nil {
		t.Fatal(err)
	}
	return &m, Applied{ResourceVersion: created.GetResourceVersion()}
}

// verdictsOf waits for the manifest's object and returns its verdicts, and the
// result of the wait.
func verdictsOf(ctx context.Context, c *Checker, m *payload.Manifest, applied Applied) (<-chan Verdict, <-chan error) {
	verdicts, result := make(chan Verdict, 100), make(chan error, 1)
	go func() {
		result <- c.Wait(ctx, m, applied, Budget{Total: 30 * time.Second}, func(v Verdict, _ time.Duration) { verdicts <- v })
		close(verdicts)
	}()
	return verdicts, result
}

// expect reads verdicts until one has the reason.
func expect(t *testing.T, verdicts <-chan Verdict, reason string) Verdict {
	t.Helper()
	var last Verdict
	for v := range verdicts {
		if last = v; v.Reason == reason {
			return v
		}
	}
	t.Fatalf("no verdict has reason %s; the last one is %+v", reason, last)
	return last
}

func TestAnUnboundClaimIsJudgedByItsStorageClass(t *testing.T) {
	ctx, cluster, checker := runningChecker(t)
	client := dynamic.NewForConfigOrDie(cluster.Config)
	claims := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}).Namespace("default")
	classes := client.Resource(schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"})
	claim := func(name, class string) string {
		return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + name + ", namespace: default}\n" +
			"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: " + class + "}"
	}
	m, applied := create(t, claims, claim("data", "fast"))
	verdicts, result := verdictsOf(ctx, checker, m, applied)
	if v := expect(t, verdicts, reasonStorageClassMissing); !strings.Contains(v.Message, "StorageClass fast not found") {
		t.Errorf("message %q doesn't name the class", v.Message)
	}
	class := decode(t, "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\nprovisioner: example.com/none\nvolumeBindingMode: Immediate")
	if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, verdicts, reasonClaimPending)
	if err := classes.Delete(ctx, "fast", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, verdicts, reasonStorageClassMissing)
	unstructured.SetNestedField(class.Object, "WaitForFirstConsumer", "volumeBindingMode") //nolint:errcheck // a constant path
	if _, err := classes.Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("a claim that waits for its first consumer: %v", err)
	}
}

// While a changed object has the status of its former specification, it isn't
// ready: neither until its controller reports, nor, if that has nothing new to
// report, for a short time.
func TestAStatusFromBeforeTheApplyDoesNotCount(t *testing.T) {
	ctx, cluster, checker := runningChecker(t)
	client := dynamic.NewForConfigOrDie(cluster.Config)
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	crd, applied := create(t, crds, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gauges.stale.example.com}
spec:
  group: stale.example.com
  names: {plural: gauges, kind: Gauge}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}`)
	if err := checker.Wait(ctx, crd, applied, Budget{Total: 30 * time.Second}, nil); err != nil {
		t.Fatal(err)
	}
	gauges := client.Resource(schema.GroupVersionResource{Group: "stale.example.com", Version: "v1", Resource: "gauges"})
	m, _ := create(t, gauges, "apiVersion: stale.example.com/v1\nkind: Gauge\nmetadata: {name: x}\nspec: {size: 1}")
	patch := func(text string, subresources ...string) Applied {
		t.Helper()
		u, err := gauges.Patch(ctx, "x", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		if err != nil {
			t.Fatal(err)
		}
		o := live.Summarize(u)
		return Applied{ResourceVersion: o.ResourceVersion, Outdated: DigestOf(o.Status, o.OtherManagers)}
	}
	patch(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Old"}]}}`, "status")
	changed := patch(`{"spec":{"size":2}}`)
	verdicts, result := verdictsOf(ctx, checker, m, changed)
	for v := range verdicts {
		if strings.Contains(v.Message, "former specification") {
			break
		}
	}
	patch(`{"status":{"phase":"Resized","conditions":[{"type":"Ready","status":"True","reason":"New"}]}}`, "status")
	if err := <-result; err != nil {
		t.Errorf("after the controller reported: %v", err)
	}

	var calls atomic.Int64
	checker.now = func() time.Time { return time.Now().Add(time.Duration(calls.Add(1)) * settleAfter) }
	changed = patch(`{"spec":{"size":3}}`)
	if err := checker.Wait(ctx, m, changed, Budget{Total: time.Hour}, nil); err != nil {
		t.Errorf("after the delay: %v", err)
	}
}

// A monitored claim reports its missing class without a sync, and a class that
// is created makes it ready.
func TestTheMonitorObservesTheStorageClassOfAClaim(t *testing.T) {
	ctx, cluster, checker := runningChecker(t)
	client := dynamic.NewForConfigOrDie(cluster.Config)
	claims := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}).Namespace("default")
	m, _ := create(t, claims, "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: monitored, namespace: default}\n"+
		"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: monitored}")
	in := live.Interest{ID: m.ID, GVK: m.GVK, Body: true}
	checker.cache.Track(in)
	defer checker.cache.Untrack(in)
	verdicts := make(chan Verdict, 100)
	monitor := checker.NewMonitor(func(_ *payload.Manifest, v Verdict) { verdicts <- v })
	defer monitor.Close()
	running, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); monitor.Run(running) }()
	defer func() { stop(); <-done }()
	monitor.Set([]payload.Manifest{*m})
	next := func(reason string) {
		t.Helper()
		for {
			select {
			case v := <-verdicts:
				if v.Reason == reason {
					return
				}
			case <-ctx.Done():
				t.Fatalf("no verdict has reason %q", reason)
			}
		}
	}
	next(reasonStorageClassMissing)
	classes := client.Resource(schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"})
	create(t, classes, "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: monitored}\nprovisioner: example.com/none\nvolumeBindingMode: WaitForFirstConsumer")
	next("")
}

func TestWaitReactsToWatchEvents(t *testing.T) {
	ctx, cluster, checker := runningChecker(t)
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
	if err := checker.Wait(ctx, &m, Applied{ResourceVersion: created.GetResourceVersion()}, Budget{Total: time.Hour, Spent: time.Hour - 300*time.Millisecond}, nil); !errors.As(err, &late) || late.Reason() != ReasonDeadlineExceeded {
		t.Fatalf("err = %v, want the deadline", err)
	}
	result := make(chan error, 1)
	verdicts := make(chan Verdict, 100)
	go func() {
		result <- checker.Wait(ctx, &m, Applied{ResourceVersion: created.GetResourceVersion()}, Budget{Total: 30 * time.Second}, func(v Verdict, _ time.Duration) { verdicts <- v })
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
