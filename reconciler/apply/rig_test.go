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

// counter counts requests by method, watches apart.
type counter struct {
	next http.RoundTripper
	mu   sync.Mutex
	seen []string
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	method := r.Method
	if r.URL.Query().Get("watch") != "" {
		method = "WATCH"
	}
	c.seen = append(c.seen, method+" "+r.URL.Path)
	c.mu.Unlock()
	return c.next.RoundTrip(r)
}

// take returns the requests since the last call, but for discovery's.
func (c *counter) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.seen
	c.seen = nil
	return out
}

// lines is a log.
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

// with returns the lines that hold all parts.
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

// rig is one set on the shared control plane, in a namespace of its own.
type rig struct {
	t       *testing.T
	cluster *controlplane.Cluster
	watcher string // the user who watches; "" is the administrator
	wait    time.Duration
	ns      string
	owner   string
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	shared  *Shared
	log     lines

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
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, controlplane.Shared(t))
}

func newRigOn(t *testing.T, cluster *controlplane.Cluster) *rig {
	t.Helper()
	kube, err := kubernetes.NewForConfig(cluster.Config)
	must(t, err)
	dyn, err := dynamic.NewForConfig(cluster.Config)
	must(t, err)
	name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(t.Name()), "-")
	name = fmt.Sprintf("%.40s%d", name, time.Now().UnixNano()%1e6)
	r := &rig{
		t: t, cluster: cluster, ns: name, owner: "clusterrelease/" + name, kube: kube, dynamic: dyn,
		shared: NewShared(DefaultConcurrency), applied: map[payload.ObjectID]payload.Manifest{},
	}
	for _, ns := range []string{ownNamespace, r.ns} {
		_, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			must(t, err)
		}
	}
	r.start()
	t.Cleanup(func() { r.kill() })
	return r
}

func counted(cfg *rest.Config, c *counter) *rest.Config {
	out := rest.CopyConfig(cfg)
	out.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		c.next = rt
		return c
	})
	return out
}

// start makes a cache and an engine, as a fresh process would.
func (r *rig) start() {
	r.t.Helper()
	cfg := r.cluster.Config
	r.requests, r.watches = &counter{}, &counter{}
	watch := rest.CopyConfig(cfg)
	watch.Impersonate.UserName = r.watcher
	cache, err := live.New(live.Config{REST: counted(watch, r.watches), Now: time.Now, Log: r.log.logger()})
	must(r.t, err)
	r.cache = cache
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context())) // Cleanup ends it.
	r.stop, r.done = cancel, make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() { _ = cache.Start(ctx) })
	r.engine, err = New(Config{
		Owner: r.owner, REST: counted(cfg, r.requests), Live: cache,
		Inventory: r.kube.CoreV1().ConfigMaps(ownNamespace), Shared: r.shared, Metrics: NewMetrics(), Now: time.Now, DeletionWait: r.wait,
		Notice: func(n Notice) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.notices = append(r.notices, n)
		},
		Log: r.log.logger(),
	})
	must(r.t, err)
	if problems, err := r.engine.Load(r.t.Context()); err != nil || len(problems) > 0 {
		r.t.Fatalf("Load: %v %v", problems, err)
	}
	group.Go(func() {
		_ = r.engine.Watch(ctx, func(id payload.ObjectID) {
			group.Go(func() { r.repair(ctx, id) })
		})
	})
	go func() { group.Wait(); close(r.done) }()
}

// kill ends the process without a goodbye.
func (r *rig) kill() {
	r.stop()
	<-r.done
	r.engine.Close()
}

func (r *rig) restart() {
	r.kill()
	r.start()
}

// patientFor starts the process again with another patience for deletions.
func (r *rig) patientFor(d time.Duration) {
	r.wait = d
	r.restart()
}

// repair is what a worker does on drift.
func (r *rig) repair(ctx context.Context, id payload.ObjectID) {
	r.mu.Lock()
	m, ok := r.applied[id]
	r.mu.Unlock()
	if !ok {
		return
	}
	ch, err := r.engine.Apply(ctx, &m, Reconciling)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.repaired = append(r.repaired, ch)
}

// told counts the notices of an object.
func (r *rig) told(id payload.ObjectID, what Event, detail string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, have := range r.notices {
		if have.ID == id && have.What == what && strings.Contains(have.Detail, detail) {
			n++
		}
	}
	return n
}

func (r *rig) repairs() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, ch := range r.repaired {
		if ch.Action == Repaired || ch.Action == Created || ch.Action == Updated {
			n++
		}
	}
	return n
}

// manifests decodes YAML; NS stands for the rig's namespace.
func (r *rig) manifests(text string) []payload.Manifest {
	r.t.Helper()
	reader := utilyaml.NewYAMLReader(bufioReader(regexp.MustCompile(`\bNS\b`).ReplaceAllString(text, r.ns)))
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
		must(r.t, yaml.Unmarshal(doc, &obj))
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: integers(obj).(map[string]any)})
		must(r.t, err)
		m.RunLevel = len(out) // Each a level of its own, so that order shows.
		out = append(out, m)
	}
}

// apply brings a set of manifests as a worker does, one after the other.
func (r *rig) apply(ms []payload.Manifest, mode Mode) []Change {
	r.t.Helper()
	must(r.t, r.engine.Begin(r.t.Context(), ms, nil))
	out := make([]Change, 0, len(ms))
	for i := range ms {
		ch, err := r.engine.Apply(r.t.Context(), &ms[i], mode)
		must(r.t, err)
		out = append(out, ch)
		r.mu.Lock()
		r.applied[ms[i].ID] = ms[i]
		r.mu.Unlock()
	}
	must(r.t, r.engine.Flush(r.t.Context()))
	return out
}

// seen waits until the cache shows the applied objects, so that what follows
// is no race with our own events.
func (r *rig) seen(ms []payload.Manifest) {
	r.t.Helper()
	for i := range ms {
		it := r.engine.set.item(ms[i].ID)
		r.engine.set.mu.RLock()
		rv := it.entry.ResourceVersion
		r.engine.set.mu.RUnlock()
		r.await("event of "+ms[i].ID.String(), func() bool {
			v := r.cache.Get(ms[i].ID)
			return v.State == live.Present && !older(v.Object.ResourceVersion, rv)
		})
	}
}

func (r *rig) await(what string, done func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			r.t.Fatalf("timed out waiting for: %s", what)
		}
		elapse(r.t, 5*time.Millisecond)
	}
}

// quiet asserts that nothing is requested for a while.
func (r *rig) quiet(d time.Duration) {
	r.t.Helper()
	r.requests.take()
	elapse(r.t, d)
	if got := r.requests.take(); len(got) > 0 {
		r.t.Errorf("requests though nothing changed: %q", got)
	}
}

func (r *rig) resource(id payload.ObjectID) dynamic.ResourceInterface {
	r.t.Helper()
	plural := strings.ToLower(id.Kind) + "s"
	switch id.Kind {
	case "NetworkPolicy":
		plural = "networkpolicies"
	}
	version := "v1"
	gvr := schema.GroupVersionResource{Group: id.Group, Version: version, Resource: plural}
	if id.Namespace == "" {
		return r.dynamic.Resource(gvr)
	}
	return r.dynamic.Resource(gvr).Namespace(id.Namespace)
}

// id names an object in the rig's namespace.
func (r *rig) id(kind, name string) payload.ObjectID {
	return payload.ObjectID{Kind: kind, Namespace: r.ns, Name: name}
}

func (r *rig) get(id payload.ObjectID) *unstructured.Unstructured {
	r.t.Helper()
	o, err := r.resource(id).Get(r.t.Context(), id.Name, metav1.GetOptions{})
	must(r.t, err)
	return o
}

func (r *rig) patch(id payload.ObjectID, manager, body string, sub ...string) *unstructured.Unstructured {
	r.t.Helper()
	o, err := r.resource(id).Patch(r.t.Context(), id.Name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager}, sub...)
	must(r.t, err)
	return o
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// elapse lets real time pass: between two looks at a real server, or to see
// that something doesn't happen, which only time can show.
func elapse(tb testing.TB, d time.Duration) {
	tb.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-tb.Context().Done():
	}
}
