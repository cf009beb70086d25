// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/controlplane"
	"github.com/lockstep-dev/lockstep/test/env"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// The values of Flux's own controllers for the same work, from the request to
// fetch until the commit was applied: the faster of two runs.
const (
	fluxFirst, fluxSome, fluxNone = 13.7, 6.9, 7.1 // seconds
	fluxRequests                  = "Flux's controllers 13.7–15.7 s, 3390 requests"
	fluxSomeRequests              = "Flux's controllers 6.9–8.1 s, 2210 requests"
	fluxNoneRequests              = "Flux's controllers 7.1–7.6 s, 2160 requests"
)

// commitCost is the cost of one commit, from the request to fetch it.
type commitCost struct {
	wall time.Duration
	// first is when the first request for an object of the release arrived,
	// last when the last one was answered; zero for none.
	first, last time.Duration
	// cpu is the CPU time of reconciler, API server and etcd.
	cpu   time.Duration
	asked asked
}

// commitRows measures commits with the whole reconciler.
func commitRows(ctx context.Context, b *bench) ([]result, error) {
	var first, some, none []commitCost
	var memory, own []float64
	for round := range b.rounds {
		b.log("commit: round %d of %d", round+1, b.rounds)
		err := b.inEnv(ctx, env.Options{}, func(w *whole) error {
			costs, m, err := commitRound(ctx, b, w)
			if err == nil {
				first, some, none = append(first, costs[0]), append(some, costs[1]), append(none, costs[2])
				memory, own = append(memory, m.all), append(own, m.own)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	seconds := func(costs []commitCost) float64 {
		return median(each(costs, func(c commitCost) float64 { return c.wall.Seconds() }))
	}
	processor := func(costs []commitCost) float64 {
		return median(each(costs, func(c commitCost) float64 { return c.cpu.Seconds() }))
	}
	written := func(costs []commitCost) float64 {
		return median(each(costs, func(c commitCost) float64 { return c.last.Seconds() }))
	}
	requests := func(costs []commitCost) float64 {
		return median(each(costs, func(c commitCost) float64 { return c.asked.count(noLease) }))
	}
	write := median(each(some, func(c commitCost) float64 { return milliseconds(c.first) }))
	return []result{
		shown("commit → applied, 1,000 objects: wall time", written(first), "s", fluxRequests),
		shown("commit → applied, 1,000 objects: wall time until status reports it complete", seconds(first), "s", ""),
		shown("commit → applied, 1,000 objects: faster than Flux", fluxFirst/written(first), "×", "").atLeast(5),
		shown("commit → applied, 1,000 objects: CPU time, client and server", processor(first), "s", "Flux's controllers 12.4–18.7 s"),
		shown("commit → applied, 1,000 objects: requests", requests(first), "", fluxRequests).atMost(1150),
		shown("commit → applied, 50 changed of 1,000: wall time", seconds(some), "s", fluxSomeRequests),
		shown("commit → applied, 50 changed of 1,000: faster than Flux", fluxSome/seconds(some), "×", "").atLeast(7),
		shown("commit → applied, 50 changed of 1,000: CPU time, client and server", processor(some), "s", "Flux's controllers 9.3–10.8 s"),
		shown("commit → applied, 50 changed of 1,000: requests", requests(some), "", fluxSomeRequests).atMost(60),
		shown("commit → applied, 50 changed of 1,000: fetch → first write of an object", write, "ms", "").atMost(1000),
		shown("commit → applied, nothing changed: wall time", seconds(none), "s", fluxNoneRequests),
		shown("commit → applied, nothing changed: faster than Flux", fluxNone/seconds(none), "×", "").atLeast(7),
		shown("commit → applied, nothing changed: CPU time, client and server", processor(none), "s", "Flux's controllers 9.8–10.3 s"),
		shown("commit → applied, nothing changed: requests", requests(none), "", fluxNoneRequests).atMost(5),
		shown("resident: the whole reconciler, 1,000 objects", median(memory)/(1<<20), "MiB", "Flux's two controllers 240–275 MiB").atMost(120),
		shown("resident: the same, without pages of the binary", median(own)/(1<<20), "MiB", ""),
	}, nil
}

func each(costs []commitCost, of func(commitCost) float64) []float64 {
	out := make([]float64, 0, len(costs))
	for _, c := range costs {
		out = append(out, of(c))
	}
	return out
}

// application is the mix of 1,000 objects as a release: prerequisites first,
// the rest in twenty components. Its Deployments have no replicas, because no
// pods run here. changed of its ConfigMaps have another value.
func application(version string, changed int) (env.Release, error) {
	var placed []workload.Placed
	for i, o := range workload.Mix("app", mixSize) {
		p := workload.Placed{Object: o, Level: 50, Component: fmt.Sprintf("part%d", i%20)}
		if o.Foundation {
			p.Level, p.Component = 10, "base"
		}
		if spec, ok := o.Content["spec"].(map[string]any); ok && o.Resource == "deployments" {
			spec["replicas"] = int64(0)
		}
		if data, ok := o.Content["data"].(map[string]any); ok && o.Resource == "configmaps" && changed > 0 {
			data["owner"] = "changed"
			changed--
		}
		placed = append(placed, p)
	}
	return env.ReleaseOf(product, version, placed)
}

// commitRound applies 1,000 objects, changes fifty of them, then none. It
// returns the costs and the process's memory.
func commitRound(ctx context.Context, b *bench, w *whole) (costs [3]commitCost, m residence, err error) {
	source := w.GitSource()
	source.Spec.Interval = metav1.Duration{Duration: 10 * time.Minute} // fetched on request only
	if err := w.start(ctx, source); err != nil {
		return costs, m, err
	}
	versions, changed := []string{"1.0.0", "1.0.1"}, []int{0, 50}
	for i, version := range versions {
		r, err := application(version, changed[i])
		if err != nil {
			return costs, m, err
		}
		ref, err := w.release(ctx, r)
		if err != nil {
			return costs, m, err
		}
		if _, err := w.commit(ctx, map[string]string{declared + product + ".yaml": declare(product, version, ref)}); err != nil {
			return costs, m, err
		}
		if costs[i], err = w.bring(ctx, b, fmt.Sprintf("%d changed", changed[i]), func() error { return w.applied(ctx, product, version) }); err != nil {
			return costs, m, err
		}
	}
	hash, err := w.commit(ctx, map[string]string{"README.md": "nothing of it is declared\n"})
	if err != nil {
		return costs, m, err
	}
	if costs[2], err = w.bring(ctx, b, "nothing changed", func() error { return w.accepted(ctx, hash) }); err != nil {
		return costs, m, err
	}
	m, err = residentOf(strconv.Itoa(w.Reconciler.PID()))
	b.log("commit    the reconciler has %.1f MiB resident, %.1f MiB of it not its program file's", m.all/(1<<20), m.own/(1<<20))
	return costs, m, err
}

// afterwards is how long requests are still counted after a commit was
// applied: the inventory is written after two seconds, and status is pushed to
// Git.
const afterwards = 8 * time.Second

// bring requests a fetch of the pushed commit and waits until it is applied.
func (w *whole) bring(ctx context.Context, b *bench, what string, done func() error) (c commitCost, err error) {
	if err := pause(ctx, afterwards); err != nil { // The previous step has ended by now.
		return c, err
	}
	mark, err := w.Control.MarkAudit()
	if err != nil {
		return c, err
	}
	used, err := w.cpu()
	if err != nil {
		return c, err
	}
	began := time.Now()
	if err := w.fetch(ctx); err != nil {
		return c, err
	}
	if err := done(); err != nil {
		return c, err
	}
	c.wall = time.Since(began)
	now, err := w.cpu()
	if err != nil {
		return c, err
	}
	c.cpu = now - used
	if err := pause(ctx, afterwards); err != nil {
		return c, err
	}
	if c.asked, err = askedSince(mark); err != nil {
		return c, err
	}
	for _, a := range c.asked.all {
		if a.As == "" || !a.Writes() {
			continue
		}
		if c.first == 0 {
			c.first = a.At.Sub(began)
		}
		c.last = max(c.last, a.Ended.Sub(began))
	}
	b.log("commit    %-15s %6.0f ms, CPU %.2f s, objects from %.0f to %.0f ms, %.0f requests: %s", what, milliseconds(c.wall), c.cpu.Seconds(),
		milliseconds(c.first), milliseconds(c.last),
		c.asked.count(noLease), words(c.asked.table()))
	return c, nil
}

// cpu is the CPU time of the reconciler, the API server and etcd.
func (w *whole) cpu() (time.Duration, error) {
	server, err := w.Control.CPU()
	if err != nil {
		return 0, err
	}
	own, err := controlplane.CPUOf(w.Reconciler.PID())
	return server + own, err
}

// accepted waits until the source has a commit.
func (w *whole) accepted(ctx context.Context, hash string) error {
	return w.until(ctx, &v1alpha1.GitSourceList{}, "the source has "+hash, func(o client.Object) bool {
		s, ok := o.(*v1alpha1.GitSource)
		return ok && s.Status.AcceptedRevision != nil && strings.HasSuffix(s.Status.AcceptedRevision.Revision, hash)
	})
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// words lists counts, the greatest first.
func words(counts map[string]int) string {
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, 0, len(keys))
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%d %s", counts[k], k))
	}
	return strings.Join(parts, ", ")
}

// residence is the resident memory of a process, in bytes.
type residence struct {
	all float64
	// own excludes pages of files, which can be dropped and read again.
	own float64
}

// residentOf reads the residence of a process from /proc.
func residentOf(pid string) (r residence, err error) {
	raw, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return r, fmt.Errorf("resident memory: %w", err)
	}
	for field, to := range map[string]*float64{"VmRSS:": &r.all, "RssAnon:": &r.own} {
		_, rest, found := strings.Cut(string(raw), field)
		if !found {
			return r, fmt.Errorf("resident memory: no %s in /proc/%s/status", field, pid)
		}
		kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		if err != nil {
			return r, fmt.Errorf("resident memory: %w", err)
		}
		*to = kib * 1024
	}
	return r, nil
}
