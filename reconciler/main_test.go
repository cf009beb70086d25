// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/runtime/metrics"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// heard records events.
type heard struct {
	mu   sync.Mutex
	list []string
}

func (h *heard) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, kind+" "+reason+" "+fmt.Sprintf(note, args...))
}

func (h *heard) AnnotatedEventf(a, b runtime.Object, _ map[string]string, kind, reason, action, note string, args ...any) {
	h.Eventf(a, b, kind, reason, action, note, args...)
}

// bench is what controllers need, over the shared control plane: a client
// without a cache, a store in a namespace of the test's own.
type bench struct {
	base
	t      *testing.T
	kube   kubernetes.Interface
	maps   typedcorev1.ConfigMapInterface
	events *heard
	// writes counts the requests that change something.
	mu     sync.Mutex
	writes int
}

// recorder is one for the whole process: its metrics are registered once.
var recorder = sync.OnceValue(metrics.MustMakeRecorder)

func newBench(t *testing.T) *bench {
	t.Helper()
	cluster := controlplane.SharedWithKinds(t)
	kube, err := kubernetes.NewForConfig(cluster.Config)
	must(t, err)
	for _, name := range []string{v1alpha1.Namespace} {
		_, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			must(t, err)
		}
	}
	own, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}, metav1.CreateOptions{})
	must(t, err)
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	direct, err := client.NewWithWatch(cluster.Config, client.Options{Scheme: scheme})
	must(t, err)
	b := &bench{t: t, kube: kube, maps: kube.CoreV1().ConfigMaps(own.Name), events: &heard{}}
	count := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.writes++
	}
	counted := interceptor.NewClient(direct, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
			count()
			return c.Patch(ctx, obj, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			count()
			return c.SubResource(sub).Patch(ctx, obj, p, opts...)
		},
	})
	ready := make(chan struct{})
	close(ready)
	b.base = base{
		client: counted, live: direct, events: b.events, metrics: recorder(), gauges: newReleaseMetrics(),
		now: func() time.Time { return epoch }, ready: ready,
	}
	b.reload()
	return b
}

// reload is what a new process does.
func (b *bench) reload() {
	b.t.Helper()
	b.store = state.New(b.maps)
	must(b.t, b.store.Load(b.t.Context()))
}

// wrote returns the number of writes since the last call.
func (b *bench) wrote() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.writes
	b.writes = 0
	return n
}

func (b *bench) runtimes(opts Options) *sourceRuntimes {
	opts.Now, opts.StateDir, opts.AllowInsecureSources = b.now, b.t.TempDir(), true
	return &sourceRuntimes{
		opts: opts, store: b.store, secrets: b.kube.CoreV1().Secrets(v1alpha1.Namespace),
		changed: make(chan event.TypedGenericEvent[string], 16), poolsChanged: make(chan event.TypedGenericEvent[string], 16),
		edits: make(chan event.TypedGenericEvent[string], 16), byName: map[string]*sourceRuntime{},
	}
}

// create makes an object of ours and deletes it at the end.
func (b *bench) create(obj client.Object) {
	b.t.Helper()
	obj.SetNamespace(v1alpha1.Namespace)
	must(b.t, b.client.Create(b.t.Context(), obj))
	b.t.Cleanup(func() {
		_ = b.client.Delete(context.WithoutCancel(b.t.Context()), obj)
	})
}

const password = "hunter2"

func secretOf(name string, annotations map[string]string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		StringData: map[string]string{"password": password},
	}
}

func containsSecret(err error) bool { return strings.Contains(err.Error(), password) }
