// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/test/controlplane"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// mixSize is the number of objects of the main rows.
const mixSize = 1000

// The contenders' names in the table.
const (
	nameOurs    = "lockstep"
	nameRaw     = "raw c=8"
	nameKubectl = "kubectl"
	nameFlux    = "pkg/ssa"
)

// contest has the measurements: one cost per contender and round.
type contest struct {
	first, again map[string][]cost
	restart      []cost
	kinds        int
	actions      map[apply.Action]int // of all our syncs that should change nothing
}

// contender applies its own objects; again repeats that for unchanged objects.
type contender struct {
	name         string
	first, again func(context.Context) (spent, error)
	// stop ends the process that applied, restart starts another one; both may
	// be nil.
	stop    func()
	restart func(context.Context) (spent, error)
	close   func() error
}

func applyRows(ctx context.Context, b *bench) ([]result, error) {
	peers, err := buildPeers(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	c := &contest{first: map[string][]cost{}, again: map[string][]cost{}, actions: map[apply.Action]int{}}
	for round := range b.rounds {
		b.log("apply: round %d of %d", round+1, b.rounds)
		if err := b.onPlane(ctx, func(p *plane) error { return c.round(ctx, b, p, peers, round) }); err != nil {
			return nil, err
		}
	}
	return c.results(), nil
}

// round runs each contender once, starting with another one each time.
func (c *contest) round(ctx context.Context, b *bench, p *plane, peers string, round int) error {
	if err := warm(ctx, p); err != nil {
		return err
	}
	makers := []func(context.Context, *bench, *plane) (*contender, error){c.ours, newRawContender}
	if hasKubectl() {
		makers = append(makers, newKubectlContender)
	}
	makers = append(makers, func(ctx context.Context, b *bench, p *plane) (*contender, error) {
		return newFluxContender(ctx, b, p, peers)
	})
	for i := range makers {
		one, err := makers[(i+round)%len(makers)](ctx, b, p)
		if err != nil {
			return err
		}
		if err := errors.Join(c.play(ctx, p, one), one.close()); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return nil
}

// warm makes the server do everything once.
func warm(ctx context.Context, p *plane) error {
	loop, err := newRawLoop(p.Config, workload.Mix("warm", mixSize/10))
	if err != nil {
		return err
	}
	_, err = loop.apply(ctx)
	return err
}

func (c *contest) play(ctx context.Context, p *plane, one *contender) error {
	first, err := p.measure(ctx, one.first)
	if err != nil {
		return err
	}
	again, err := p.measure(ctx, one.again)
	if err != nil {
		return err
	}
	c.first[one.name], c.again[one.name] = append(c.first[one.name], first), append(c.again[one.name], again)
	p.log("%-9s first %6.0f ms, CPU %.2f s and the server's %.2f s, %5d requests; unchanged %6.1f ms, %5d requests", one.name,
		milliseconds(first.wall), first.cpu.Seconds(), first.server.Seconds(), first.requests.Sum(all), milliseconds(again.wall), again.requests.Sum(all))
	if one.restart == nil {
		return nil
	}
	one.stop()
	restart, err := p.measure(ctx, one.restart)
	c.restart = append(c.restart, restart)
	p.log("%-9s restart %4.0f ms %5d requests", one.name, milliseconds(restart.wall), restart.requests.Sum(all))
	return err
}

// ours is the apply part of the reconciler.
func (c *contest) ours(_ context.Context, _ *bench, p *plane) (*contender, error) {
	ms, err := workload.Manifests(workload.Mix("ours", mixSize))
	if err != nil {
		return nil, err
	}
	kinds := map[string]bool{}
	for i := range ms {
		kinds[ms[i].ID.Group+ms[i].ID.Kind] = true
	}
	c.kinds = len(kinds)
	var o *ours
	start := func(ctx context.Context) (err error) {
		o, err = startOurs(ctx, p.Config, "bench", nil)
		return err
	}
	unchanged := func(ctx context.Context, begin bool) error {
		actions, err := o.pass(ctx, ms, payload.Reconciling, begin)
		for action, n := range actions {
			c.actions[action] += n
		}
		return err
	}
	one := &contender{name: nameOurs}
	one.first = func(ctx context.Context) (spent, error) {
		return self(func() error {
			if err := start(ctx); err != nil {
				return err
			}
			_, err := o.pass(ctx, ms, payload.Initializing, true)
			return err
		})
	}
	one.again = func(ctx context.Context) (spent, error) {
		return self(func() error { return unchanged(ctx, false) })
	}
	one.stop = func() { o.close() }
	one.restart = func(ctx context.Context) (spent, error) {
		took, err := self(func() error {
			if err := start(ctx); err != nil {
				return err
			}
			return unchanged(ctx, true)
		})
		o.close() // Its watches are counted now.
		return took, errors.Join(err, p.settle(ctx))
	}
	one.close = func() error { return nil }
	return one, nil
}

func newRawContender(_ context.Context, _ *bench, p *plane) (*contender, error) {
	loop, err := newRawLoop(p.Config, workload.Mix("raw", mixSize))
	if err != nil {
		return nil, err
	}
	return &contender{name: nameRaw, first: loop.apply, again: loop.apply, close: func() error { return nil }}, nil
}

func newKubectlContender(_ context.Context, b *bench, p *plane) (*contender, error) {
	file := filepath.Join(b.dir, "kubectl.yaml")
	if err := writeDocuments(file, workload.Mix("kubectl", mixSize)); err != nil {
		return nil, err
	}
	do := func(ctx context.Context) (spent, error) { return kubectlApply(ctx, p.Kubeconfig(), file) }
	return &contender{name: nameKubectl, first: do, again: do, close: func() error { return nil }}, nil
}

func newFluxContender(ctx context.Context, b *bench, p *plane, program string) (*contender, error) {
	file := filepath.Join(b.dir, "flux.yaml")
	if err := writeDocuments(file, workload.Mix("flux", mixSize)); err != nil {
		return nil, err
	}
	flux, err := startFluxSSA(ctx, program, p.Kubeconfig())
	if err != nil {
		return nil, err
	}
	do := func(context.Context) (spent, error) { return flux.apply(file) }
	return &contender{name: nameFlux, first: do, again: do, close: flux.close}, nil
}

// wallTimes returns the wall times in seconds.
func wallTimes(costs []cost) []float64 {
	out := make([]float64, 0, len(costs))
	for _, c := range costs {
		out = append(out, c.wall.Seconds())
	}
	return out
}

// processors returns the CPU times in seconds, client and server.
func processors(costs []cost) []float64 {
	out := make([]float64, 0, len(costs))
	for _, c := range costs {
		out = append(out, c.seconds())
	}
	return out
}

// counted sums up the matching requests of each round.
func counted(costs []cost, match func(controlplane.Request) bool) []float64 {
	out := make([]float64, 0, len(costs))
	for _, c := range costs {
		out = append(out, float64(c.requests.Sum(match)))
	}
	return out
}

// beside lists the peers' medians.
func beside(costs map[string][]cost, figure func([]cost) []float64, format string) string {
	var parts []string
	for _, name := range []string{nameRaw, nameKubectl, nameFlux} {
		if len(costs[name]) > 0 {
			parts = append(parts, fmt.Sprintf("%s "+format, name, median(figure(costs[name]))))
		}
	}
	return strings.Join(parts, ", ")
}

func requests(costs []cost) []float64 { return counted(costs, all) }

// patches are the requests that write objects; inventories are written with
// other verbs.
func patches(r controlplane.Request) bool {
	return (r.Verb == "APPLY" || r.Verb == "PATCH") && writes(r)
}

func (c *contest) results() []result {
	out := append(c.firstResults(), c.againResults()...)
	return append(out, c.restartResults()...)
}

func (c *contest) firstResults() []result {
	ours := c.first[nameOurs]
	out := []result{
		shown("first apply of 1,000: wall time", median(wallTimes(ours)), "s", beside(c.first, wallTimes, "%.2f s")),
		shown("first apply of 1,000: wall time over raw patches", median(ratios(wallTimes(ours), wallTimes(c.first[nameRaw]))), "×", "").atMost(1.1),
	}
	if peer := c.first[nameKubectl]; len(peer) > 0 {
		out = append(out, shown("first apply of 1,000: faster than kubectl", median(ratios(wallTimes(peer), wallTimes(ours))), "×", "").atLeast(2.2))
	}
	flux := c.first[nameFlux]
	return append(out,
		shown("first apply of 1,000: faster than pkg/ssa", median(ratios(wallTimes(flux), wallTimes(ours))), "×", "").atLeast(2.7),
		shown("first apply of 1,000: CPU time, client and server", median(processors(ours)), "s", beside(c.first, processors, "%.2f s")),
		shown("first apply of 1,000: mutating requests per object", median(counted(ours, patches))/mixSize, "", beside(c.first, requests, "%.0f requests")).atMost(1),
		shown("first apply of 1,000: other requests (inventory, watches)", median(requests(ours))-median(counted(ours, patches)), "", ""))
}

func (c *contest) againResults() []result {
	ours := c.again[nameOurs]
	return []result{
		shown("1,000 unchanged, running: requests", median(requests(ours)), "", beside(c.again, requests, "%.0f")).atMost(0),
		shown("1,000 unchanged, running: wall time", 1000*median(wallTimes(ours)), "ms", beside(c.again, wallTimes, "%.2f s")).atMost(15),
	}
}

func (c *contest) restartResults() []result {
	flux := c.again[nameFlux]
	looks := 0
	for action, n := range c.actions {
		if action != apply.Unchanged {
			looks += n
		}
	}
	return []result{
		shown("1,000 unchanged, after a restart: wall time", 1000*median(wallTimes(c.restart)), "ms", beside(c.again, wallTimes, "%.2f s")),
		shown("1,000 unchanged, after a restart: faster than pkg/ssa", median(ratios(wallTimes(flux), wallTimes(c.restart))), "×", "").atLeast(20),
		shown("1,000 unchanged, after a restart: less CPU time than pkg/ssa", median(ratios(processors(flux), processors(c.restart))), "×", ""),
		shown("1,000 unchanged, after a restart: writes", median(counted(c.restart, writes)), "", beside(c.again, requests, "%.0f requests")).atMost(0),
		shown(fmt.Sprintf("1,000 unchanged, after a restart: lists and watches of %d kinds and the inventory", c.kinds),
			median(counted(c.restart, reads)), "", "").atMost(float64(c.kinds + 1)),
		shown("1,000 unchanged: objects that needed a request, all rounds", float64(looks), "", "").atMost(0),
	}
}
