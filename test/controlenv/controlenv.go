// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package controlenv sets up what the tests of a controller need: clients for the
// shared control plane, an empty store and an event recorder.
package controlenv

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/runtime/metrics"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// Epoch is the time of an Env's clock.
var Epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// Must fails the test at an error.
func Must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Events records events as "kind reason note". It is safe for concurrent use.
type Events struct {
	mu   sync.Mutex
	list []string
}

// Eventf implements events.Recorder.
func (e *Events) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, kind+" "+reason+" "+fmt.Sprintf(note, args...))
}

// AnnotatedEventf implements events.Recorder.
func (e *Events) AnnotatedEventf(a, b runtime.Object, _ map[string]string, kind, reason, action, note string, args ...any) {
	e.Eventf(a, b, kind, reason, action, note, args...)
}

// Env is the environment of one test. The embedded Base has a client without a
// cache and a store in a namespace of the test; Fatal fails the test.
type Env struct {
	control.Base
	Kube kubernetes.Interface
	// Maps are the ConfigMaps of the test's namespace.
	Maps typedcorev1.ConfigMapInterface

	tb testing.TB
	// writes counts write requests.
	mu     sync.Mutex
	writes int
}

// recorder is one per process: its metrics are registered once.
var recorder = sync.OnceValue(metrics.MustMakeRecorder)

// New returns an Env over the shared control plane.
func New(tb testing.TB) *Env {
	tb.Helper()
	cluster := controlplane.SharedWithKinds(tb)
	kube, err := kubernetes.NewForConfig(cluster.Config)
	Must(tb, err)
	_, err = kube.CoreV1().Namespaces().Create(tb.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		Must(tb, err)
	}
	own, err := kube.CoreV1().Namespaces().Create(tb.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	Must(tb, err)
	scheme := runtime.NewScheme()
	Must(tb, clientgoscheme.AddToScheme(scheme))
	Must(tb, v1alpha1.AddToScheme(scheme))
	direct, err := client.NewWithWatch(cluster.Config, client.Options{Scheme: scheme})
	Must(tb, err)
	e := &Env{tb: tb, Kube: kube, Maps: kube.CoreV1().ConfigMaps(own.Name)}
	ready := make(chan struct{})
	close(ready)
	e.Base = control.Base{
		Client: interceptor.NewClient(direct, interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
				e.count()
				return c.Patch(ctx, obj, p, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				e.count()
				return c.SubResource(sub).Patch(ctx, obj, p, opts...)
			},
		}),
		Reader: direct, Events: &Events{}, Metrics: recorder(), Log: logr.Discard(), Now: func() time.Time { return Epoch },
		Ready: ready, Fatal: func(err error) { tb.Errorf("the process would end: %v", err) },
	}
	e.Reload()
	return e
}

func (e *Env) count() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.writes++
}

// Reload loads the store as a new process does.
func (e *Env) Reload() {
	e.tb.Helper()
	e.Store = state.New(e.Maps)
	Must(e.tb, e.Store.Load(e.tb.Context()))
}

// Writes returns the number of write requests since the last call.
func (e *Env) Writes() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.writes
	e.writes = 0
	return n
}

// Create creates an object in Lockstep's namespace and deletes it after the test.
func (e *Env) Create(obj client.Object) {
	e.tb.Helper()
	obj.SetNamespace(v1alpha1.Namespace)
	Must(e.tb, e.Client.Create(e.tb.Context(), obj))
	e.tb.Cleanup(func() {
		_ = e.Client.Delete(context.WithoutCancel(e.tb.Context()), obj)
	})
}

// Exists reports whether an object exists, and reads it.
func (e *Env) Exists(obj client.Object) bool {
	e.tb.Helper()
	err := e.Reader.Get(e.tb.Context(), client.ObjectKeyFromObject(obj), obj)
	Must(e.tb, client.IgnoreNotFound(err))
	return err == nil
}

// AcceptedSource returns the accepted state of a source that declares objects, by
// "Kind/name".
func AcceptedSource(objects map[string]string) state.Source {
	return state.Source{URL: "ssh://git@git.example.com/old.git", Cluster: "prod", Revision: "main@sha1:0123", Objects: objects}
}
