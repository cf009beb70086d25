// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// releaseRows applies a release of realistic size, run level by run level,
// beside the bare loop, which only applies foundations first.
func releaseRows(ctx context.Context, b *bench) ([]result, error) {
	var byLevel, flat, bare []cost
	var form taskgraph.Summary
	rounds := min(b.rounds, fewRounds)
	for round := range rounds {
		b.log("release: round %d of %d", round+1, rounds)
		err := b.onPlane(ctx, func(p *plane) error {
			if err := warm(ctx, p); err != nil {
				return err
			}
			work := []func() error{
				func() error { return rawRelease(ctx, p, &bare) },
				func() error { return ourRelease(ctx, p, "level", payload.Updating, &byLevel, &form) },
				func() error { return ourRelease(ctx, p, "flat", payload.Initializing, &flat, nil) },
			}
			for i := range work {
				if err := work[(i+round)%len(work)](); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	what := fmt.Sprintf("release of %d tasks in %d nodes", form.Tasks, form.Nodes)
	peer := fmt.Sprintf("raw c=8, no order: %.2f s", median(wallTimes(bare)))
	return []result{
		shown(what+", first, flat (Initializing): wall time", median(wallTimes(flat)), "s", peer),
		shown(what+", run level by run level (Updating): wall time", median(wallTimes(byLevel)), "s", peer),
		shown(what+", run level by run level: wall time over raw patches", median(ratios(wallTimes(byLevel), wallTimes(bare))), "×", ""),
		shown(what+", run level by run level: mutating requests per object", median(counted(byLevel, patches))/workload.ReleaseSize, "", ""),
	}, nil
}

func rawRelease(ctx context.Context, p *plane, costs *[]cost) error {
	var objects []workload.Object
	for _, one := range workload.Release("raw") {
		objects = append(objects, one.Object)
	}
	loop, err := newRawLoop(p.Config, objects)
	if err != nil {
		return err
	}
	c, err := p.measure(ctx, loop.apply)
	p.log("release   raw       %6.0f ms %5d requests", milliseconds(c.wall), c.requests.Sum(all))
	*costs = append(*costs, c)
	return err
}

func ourRelease(ctx context.Context, p *plane, name string, state payload.State, costs *[]cost, form *taskgraph.Summary) error {
	ms, err := workload.ReleaseManifests(workload.Release(name))
	if err != nil {
		return err
	}
	if form != nil {
		*form = taskgraph.Build(ms, state, taskgraph.Order{}).Summary()
	}
	c, err := p.measure(ctx, func(ctx context.Context) (spent, error) {
		return self(func() error {
			o, err := startOurs(ctx, p.Config, name, nil)
			if err != nil {
				return err
			}
			defer o.close()
			_, err = o.pass(ctx, ms, state, true)
			return err
		})
	})
	p.log("release   %-9s %6.0f ms %5d requests", name, milliseconds(c.wall), c.requests.Sum(all))
	*costs = append(*costs, c)
	return err
}
