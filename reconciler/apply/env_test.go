// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

const ownNamespace = "lockstep-system"

// patience bounds what a test waits for.
const patience = 30 * time.Second

// counter records requests; watches have the method WATCH.
type counter struct {
	next     http.RoundTripper
	mu       sync.Mutex
	requests []string
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	method := r.Method
	if r.URL.Query().Get("watch") != "" {
		method = "WATCH"
	}
	c.requests = append(c.requests, method+" "+r.URL.Path)
	c.mu.Unlock()
	return c.next.RoundTrip(r)
}

// take returns the requests since the last call.
func (c *counter) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.requests
	c.requests = nil
	return out
}

// lines records a log.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) logger() logr.Logger {
	return funcr.New(func(_, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.text = append(l.text, args)
	}, funcr.Options{})
}

// with returns the lines that contain all parts.
func (l *lines) with(parts ...string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.text {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			out = append(out, line)
		}
	}
	return out
}

// testEnv is one set on the control plane, with its own namespace.
type testEnv struct {
	t       *testing.T
	cluster *controlplane.Cluster
	watcher string // the user of the watches; "" is the administrator
	wait    time.Duration
	ns      string
	owner   string
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	shared  *Shared
	log     lines
	// inventory, if set, replaces the client of the inventory.
	inventory func(corev1client.ConfigMapInterface) corev1client.ConfigMapInterface

	cache    *live.Cache
	engine   *Engine
	requests *counter
	watches  *counter
	stop     context.CancelFunc
	done     chan struct{}

	mu       sync.Mutex
	applied  map[payload.ObjectID]payload.Manifest
	repaired []Change
	notices  []Notice
	drifted  []payload.ObjectID
}

func newEnv(t *testing.T) *testEnv {
	t.Helper()
	return newEnvOn(t, controlplane.Shared(t))
}

func newEnvOn(t *testing.T, cluster *controlplane.Cluster) *testEnv {
	t.Helper()
	kube, err := kubernetes.NewForConfig(cluster.Config)
	must(t, err)
	dyn, err := dynamic.NewForConfig(cluster.Config)
	must(t, err)
	name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(t.Name()), "-")
	name = fmt.Sprintf("%.40s%d", name, time.Now().UnixNano()%1e6)
	env := &testEnv{
		t: t, cluster: cluster, ns: name, owner: "clusterrelease/" + name, kube: kube, dynamic: dyn,
		shared: NewShared(DefaultConcurrency), applied: map[payload.ObjectID]payload.Manifest{},
	}
	for _, ns := range []string{ownNamespace, env.ns} {
		_, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			must(t, err)
		}
	}
	env.start()
	t.Cleanup(func() { env.crash() })
	return env
}

func counted(cfg *rest.Config, c *counter) *rest.Config {
	out := rest.CopyConfig(cfg)
	out.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		c.next = rt
		return c
	})
	return out
}

// start creates a cache and an engine, as a new process does.
func (env *testEnv) start() {
	env.t.Helper()
	cfg := env.cluster.Config
	env.requests, env.watches = &counter{}, &counter{}
	watch := rest.CopyConfig(cfg)
	watch.Impersonate.UserName = env.watcher
	cache, err := live.New(live.Config{REST: counted(watch, env.watches), Now: time.Now, Log: env.log.logger()})
	must(env.t, err)
	env.cache = cache
	ctx, cancel := context.WithCancel(context.WithoutCancel(env.t.Context())) // Cleanup ends it.
	env.stop, env.done = cancel, make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() { _ = cache.Start(ctx) })
	inventory := env.kube.CoreV1().ConfigMaps(ownNamespace)
	if env.inventory != nil {
		inventory = env.inventory(inventory)
	}
	env.engine, err = New(Config{
		Owner: env.owner, REST: counted(cfg, env.requests), Live: cache,
		Inventory: inventory, Shared: env.shared, Metrics: NewMetrics(), Now: time.Now, DeletionWait: env.wait,
		Notice: func(n Notice) {
			env.mu.Lock()
			defer env.mu.Unlock()
			env.notices = append(env.notices, n)
		},
		Log: env.log.logger(),
	})
	must(env.t, err)
	if problems, err := env.engine.Load(env.t.Context()); err != nil || len(problems) > 0 {
		env.t.Fatalf("Load: %v %v", problems, err)
	}
	group.Go(func() {
		_ = env.engine.Watch(ctx, func(id payload.ObjectID) {
			env.mu.Lock()
			env.drifted = append(env.drifted, id)
			env.mu.Unlock()
			group.Go(func() { env.repair(ctx, id) })
		})
	})
	go func() { group.Wait(); close(env.done) }()
}

// crash ends the process without a flush.
func (env *testEnv) crash() {
	env.stop()
	<-env.done
	env.engine.Close()
}

func (env *testEnv) restart() {
	env.crash()
	env.start()
}

// restartWithWait restarts the process with another DeletionWait.
func (env *testEnv) restartWithWait(d time.Duration) {
	env.wait = d
	env.restart()
}

// repair applies the last manifest, as a worker does on drift.
func (env *testEnv) repair(ctx context.Context, id payload.ObjectID) {
	env.mu.Lock()
	m, ok := env.applied[id]
	env.mu.Unlock()
	if !ok {
		return
	}
	ch, err := env.engine.Apply(ctx, &m, Reconciling)
	if err != nil {
		return
	}
	env.mu.Lock()
	defer env.mu.Unlock()
	env.repaired = append(env.repaired, ch)
}

// noticesOf counts the notices of an object.
func (env *testEnv) noticesOf(id payload.ObjectID, what Event, detail string) int {
	env.mu.Lock()
	defer env.mu.Unlock()
	n := 0
	for _, have := range env.notices {
		if have.ID == id && have.What == what && strings.Contains(have.Detail, detail) {
			n++
		}
	}
	return n
}

func (env *testEnv) repairs() int {
	env.mu.Lock()
	defer env.mu.Unlock()
	n := 0
	for _, ch := range env.repaired {
		if ch.Action == Repaired || ch.Action == Created || ch.Action == Updated {
			n++
		}
	}
	return n
}

// manifests decodes YAML; NS is replaced by the env's namespace.
func (env *testEnv) manifests(text string) []payload.Manifest {
	env.t.Helper()
	reader := utilyaml.NewYAMLReader(bufioReader(regexp.MustCompile(`\bNS\b`).ReplaceAllString(text, env.ns)))
	var out []payload.Manifest
	for {
		doc, err := reader.Read()
		if err != nil {
			return out
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		obj := map[string]any{}
		must(env.t, yaml.Unmarshal(doc, &obj))
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: integers(obj).(map[string]any)})
		must(env.t, err)
		m.RunLevel = len(out) // One run level each, to test the order.
		out = append(out, m)
	}
}

// apply applies the manifests one by one, as a worker does.
func (env *testEnv) apply(ms []payload.Manifest, mode Mode) []Change {
	env.t.Helper()
	must(env.t, env.engine.Begin(env.t.Context(), ms, nil))
	out := make([]Change, 0, len(ms))
	for i := range ms {
		ch, err := env.engine.Apply(env.t.Context(), &ms[i], mode)
		must(env.t, err)
		out = append(out, ch)
		env.mu.Lock()
		env.applied[ms[i].ID] = ms[i]
		env.mu.Unlock()
	}
	must(env.t, env.engine.Flush(env.t.Context()))
	return out
}

// awaitEvents waits until the cache has the events of the last applies.
func (env *testEnv) awaitEvents(ms []payload.Manifest) {
	env.t.Helper()
	for i := range ms {
		it := env.engine.set.item(ms[i].ID)
		env.engine.set.mu.RLock()
		rv := it.entry.ResourceVersion
		env.engine.set.mu.RUnlock()
		env.await("event of "+ms[i].ID.String(), func() bool {
			v := env.cache.Get(ms[i].ID)
			return v.State == live.Present && !older(v.Object.ResourceVersion, rv)
		})
	}
}

func (env *testEnv) await(what string, done func() bool) {
	env.t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			env.t.Fatalf("timed out waiting for: %s", what)
		}
		elapse(env.t, 5*time.Millisecond)
	}
}

// wantNoRequests checks that no request is sent within d.
func (env *testEnv) wantNoRequests(d time.Duration) {
	env.t.Helper()
	env.requests.take()
	env.wantNoMoreRequests(d)
}

// wantNoMoreRequests checks that no request was sent since the last take, nor is
// within d.
func (env *testEnv) wantNoMoreRequests(d time.Duration) {
	env.t.Helper()
	elapse(env.t, d)
	if got := env.requests.take(); len(got) > 0 {
		env.t.Errorf("requests without a change: %q", got)
	}
}

func (env *testEnv) resource(id payload.ObjectID) dynamic.ResourceInterface {
	env.t.Helper()
	plural := strings.ToLower(id.Kind) + "s"
	switch id.Kind {
	case "NetworkPolicy":
		plural = "networkpolicies"
	}
	version := "v1"
	gvr := schema.GroupVersionResource{Group: id.Group, Version: version, Resource: plural}
	if id.Namespace == "" {
		return env.dynamic.Resource(gvr)
	}
	return env.dynamic.Resource(gvr).Namespace(id.Namespace)
}

// id returns the identity of an object in the env's namespace.
func (env *testEnv) id(kind, name string) payload.ObjectID {
	return payload.ObjectID{Kind: kind, Namespace: env.ns, Name: name}
}

func (env *testEnv) get(id payload.ObjectID) *unstructured.Unstructured {
	env.t.Helper()
	o, err := env.resource(id).Get(env.t.Context(), id.Name, metav1.GetOptions{})
	must(env.t, err)
	return o
}

func (env *testEnv) patch(id payload.ObjectID, manager, body string, sub ...string) *unstructured.Unstructured {
	env.t.Helper()
	o, err := env.resource(id).Patch(env.t.Context(), id.Name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager}, sub...)
	must(env.t, err)
	return o
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// elapse waits in real time, between two reads of the API server or to check that
// something doesn't happen.
func elapse(tb testing.TB, d time.Duration) {
	tb.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-tb.Context().Done():
	}
}
