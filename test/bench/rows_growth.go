// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// sizes are the measured sizes by server: a cache contains all objects of a
// kind, so the largest size has its own server.
func sizes() [][]int { return [][]int{{1000, 100}, {5000}} }

// growth has the measurements of one size.
type growth struct {
	first, unchanged, restart cost
	memory                    map[string]memory
}

// memory is what a child process reports about itself.
type memory struct {
	// Objects is the number of objects that share the heap's growth.
	Objects int     `json:"objects"`
	Heap    float64 `json:"heap"` // bytes per object
	RSS     float64 `json:"rss"`  // bytes of the process
}

func growthRows(ctx context.Context, b *bench) ([]result, error) {
	found := map[int]growth{}
	for _, group := range sizes() {
		err := b.onPlane(ctx, func(p *plane) error {
			if err := warm(ctx, p); err != nil {
				return err
			}
			for _, n := range group {
				g, err := grow(ctx, p, n)
				if err != nil {
					return fmt.Errorf("%d objects: %w", n, err)
				}
				found[n] = g
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return growthResults(found), nil
}

// grow applies a set and measures processes that cache it.
func grow(ctx context.Context, p *plane, n int) (g growth, err error) {
	owner := fmt.Sprintf("growth-%d", n)
	ms, err := workload.Manifests(workload.Mix(owner, n))
	if err != nil {
		return g, err
	}
	var o *ours
	pass := func(state payload.State, fresh bool) func(context.Context) (spent, error) {
		return func(ctx context.Context) (spent, error) {
			return self(func() (err error) {
				if fresh {
					if o, err = startOurs(ctx, p.Config, owner, nil); err != nil {
						return err
					}
				}
				_, err = o.pass(ctx, ms, state, fresh)
				return err
			})
		}
	}
	if g.first, err = p.measure(ctx, pass(payload.Initializing, true)); err != nil {
		return g, err
	}
	if g.unchanged, err = p.measure(ctx, pass(payload.Reconciling, false)); err != nil {
		return g, err
	}
	o.close()
	if g.restart, err = p.measure(ctx, pass(payload.Reconciling, true)); err != nil {
		return g, err
	}
	o.close()
	p.log("%5d objects: first %.0f ms, unchanged %.1f ms, restart %.0f ms", n, milliseconds(g.first.wall), milliseconds(g.unchanged.wall), milliseconds(g.restart.wall))
	if n < mixSize {
		return g, nil
	}
	g.memory = map[string]memory{}
	for _, what := range children() {
		if g.memory[what], err = askChild(ctx, p, what, owner, n); err != nil {
			return g, err
		}
		p.log("%5d objects, %s: %.0f bytes of heap per object (%d), %.1f MiB resident", n, what, g.memory[what].Heap, g.memory[what].Objects, g.memory[what].RSS/(1<<20))
	}
	return g, nil
}

func growthResults(found map[int]growth) []result {
	each := func(c cost, n int) float64 { return 1e6 * c.wall.Seconds() / float64(n) }
	small, middle, large := found[100], found[1000], found[5000]
	kilo := func(g growth, what string) float64 { return g.memory[what].Heap / 1000 }
	mebi := func(g growth) float64 { return g.memory[childProcess].RSS / (1 << 20) }
	peer := fmt.Sprintf("typed informers %.1f kB, dynamic %.1f kB", kilo(large, childTyped), kilo(large, childDynamic))
	return []result{
		shown("first apply, time per object: 5,000 over 100", each(large.first, 5000)/each(small.first, 100), "×",
			fmt.Sprintf("%.0f µs and %.0f µs", each(large.first, 5000), each(small.first, 100))),
		shown("unchanged sync, time per object: 5,000 over 1,000", each(large.unchanged, 5000)/each(middle.unchanged, 1000), "×",
			fmt.Sprintf("%.1f µs and %.1f µs", each(large.unchanged, 5000), each(middle.unchanged, 1000))),
		shown("restart, time per object: 5,000 over 1,000", each(large.restart, 5000)/each(middle.restart, 1000), "×",
			fmt.Sprintf("%.0f µs and %.0f µs", each(large.restart, 5000), each(middle.restart, 1000))),
		shown("heap per object in the watch cache, metadata only, of 5,000", kilo(large, childMetadata), "kB", peer).atMost(1),
		shown("heap per object in the watch cache, all kinds of the mix, of 5,000", kilo(large, childCache), "kB", peer),
		shown("resident: cache, engine and manifests of 1,000 objects", mebi(middle), "MiB", "Flux's two controllers 240–275 MiB").atMost(120),
		shown("resident: cache, engine and manifests of 5,000 objects", mebi(large), "MiB", ""),
	}
}

// The contents of a child's memory.
const (
	childProcess  = "process"  // all of Lockstep's parts, after a sync
	childCache    = "cache"    // the watch cache alone, as the engine uses it
	childMetadata = "metadata" // the same, for kinds of which only metadata is needed
	childTyped    = "typed"    // client-go's typed informers, all kinds except CRDs
	childDynamic  = "dynamic"  // client-go's dynamic informers, likewise
)

func children() []string {
	return []string{childProcess, childCache, childMetadata, childTyped, childDynamic}
}

// askChild runs this program in a new process, so that this process's memory
// doesn't count.
func askChild(ctx context.Context, p *plane, what, owner string, n int) (m memory, err error) {
	program, err := os.Executable()
	if err != nil {
		return m, fmt.Errorf("this program: %w", err)
	}
	command := exec.CommandContext(ctx, program, "-child", what, p.Kubeconfig(), owner, strconv.Itoa(n))
	command.Stderr = os.Stderr
	raw, err := command.Output()
	if err != nil {
		return m, fmt.Errorf("child %s: %w", what, err)
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("child %s: %w", what, err)
	}
	return m, nil
}

// runChild measures itself and writes a memory.
func runChild(ctx context.Context, what string, args []string, out io.Writer) error {
	if len(args) != 3 {
		return fmt.Errorf("child %s: want KUBECONFIG OWNER COUNT, have %q", what, args)
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return fmt.Errorf("child %s: %w", what, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return fmt.Errorf("child %s: %w", what, err)
	}
	config.QPS = -1
	ms, err := workload.Manifests(workload.Mix(args[1], n))
	if err != nil {
		return err
	}
	m, err := weigh(ctx, what, config, args[1], ms)
	if err != nil {
		return fmt.Errorf("child %s: %w", what, err)
	}
	return json.NewEncoder(out).Encode(m)
}

// weigh fills the memory and returns the growth of the heap.
func weigh(ctx context.Context, what string, config *rest.Config, owner string, ms []payload.Manifest) (m memory, err error) {
	before := heap()
	var keep any
	switch what {
	case childProcess:
		keep, m.Objects, err = fillProcess(ctx, config, owner, ms)
	case childCache, childMetadata:
		keep, m.Objects, err = fillCache(ctx, config, ms, what == childMetadata)
	case childTyped:
		keep, m.Objects, err = fillTyped(ctx, config)
	case childDynamic:
		keep, m.Objects, err = fillDynamic(ctx, config)
	default:
		return m, fmt.Errorf("no such child")
	}
	if err != nil {
		return m, err
	}
	r, err := residentOf("self") // Before the collection, as it runs.
	if err != nil {
		return m, err
	}
	m.RSS = r.all
	m.Heap = (heap() - before) / float64(max(m.Objects, 1))
	runtime.KeepAlive(keep)
	runtime.KeepAlive(ms)
	return m, nil
}

// heap is what is reachable, in bytes.
func heap() float64 {
	debug.FreeOSMemory() // It collects; twice, because of finalizers.
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

func fillProcess(ctx context.Context, config *rest.Config, owner string, ms []payload.Manifest) (any, int, error) {
	o, err := startOurs(ctx, config, owner, nil)
	if err != nil {
		return nil, 0, err
	}
	if _, err := o.pass(ctx, ms, payload.Reconciling, true); err != nil {
		return nil, 0, err
	}
	return o, len(ms), nil
}

func fillCache(ctx context.Context, config *rest.Config, ms []payload.Manifest, metadataOnly bool) (any, int, error) {
	o, err := startOurs(ctx, config, "nobody", nil)
	if err != nil {
		return nil, 0, err
	}
	var some []payload.Manifest
	var interests []live.Interest
	for i := range ms {
		body := live.NeedsBody(&ms[i])
		if body && metadataOnly {
			continue
		}
		some = append(some, ms[i])
		interests = append(interests, live.Interest{ID: ms[i].ID, GVK: ms[i].GVK, Body: body})
	}
	o.cache.Track(interests...)
	n, err := o.kept(ctx, some)
	return o, n, err
}

func fillTyped(ctx context.Context, config *rest.Config) (any, int, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, 0, err
	}
	factory := informers.NewSharedInformerFactory(kube, 0)
	n := 0
	for _, resource := range workload.MixResources() {
		if _, err := factory.ForResource(resource); err != nil {
			return nil, 0, err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for _, resource := range workload.MixResources() {
		informer, err := factory.ForResource(resource)
		if err != nil {
			return nil, 0, err
		}
		n += len(informer.Informer().GetStore().ListKeys())
	}
	return factory, n, nil
}

func fillDynamic(ctx context.Context, config *rest.Config) (any, int, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, 0, err
	}
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, metav1.NamespaceAll, nil)
	for _, resource := range workload.MixResources() {
		factory.ForResource(resource)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	n := 0
	for _, resource := range workload.MixResources() {
		n += len(factory.ForResource(resource).Informer().GetStore().ListKeys())
	}
	return factory, n, nil
}
