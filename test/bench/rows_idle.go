// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/test/env"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// idleTime is the duration that the goals refer to.
const idleTime = 10 * time.Minute

// idleRows counts the requests of the whole reconciler at rest, with defaults,
// for the release of 862 tasks.
func idleRows(ctx context.Context, b *bench) ([]result, error) {
	b.log("idle: this takes %s, once, and needs nothing of the machine (-idle 1m for a trial)", b.idle+time.Minute)
	var seen asked
	err := b.inEnv(ctx, env.Options{Pods: true, MinInterval: "60s"}, func(w *whole) error {
		if err := w.Control.AddNodes(ctx, 3, nil); err != nil {
			return err
		}
		source := w.GitSource()
		source.Spec.Interval = metav1.Duration{Duration: time.Minute}
		if err := w.start(ctx, source); err != nil {
			return err
		}
		r, err := env.ReleaseOf(product, "1.0.0", workload.Release("idle"))
		if err != nil {
			return err
		}
		ref, err := w.release(ctx, r)
		if err != nil {
			return err
		}
		if _, err := w.commit(ctx, map[string]string{declared + product + ".yaml": declare(product, "1.0.0", ref)}); err != nil {
			return err
		}
		if err := w.fetch(ctx); err != nil {
			return err
		}
		if err := w.applied(ctx, product, "1.0.0"); err != nil {
			return err
		}
		// Status is pushed to Git within a minute.
		if err := pause(ctx, min(b.idle, 75*time.Second)); err != nil {
			return err
		}
		mark, err := w.Control.MarkAudit()
		if err != nil {
			return err
		}
		b.log("idle: %s from now", b.idle)
		if err := pause(ctx, b.idle); err != nil {
			return err
		}
		seen, err = askedSince(mark)
		return err
	})
	if err != nil {
		return nil, err
	}
	b.log("idle      %s", words(seen.table()))
	const peer = "CVO ≈ 1,800–3,200 requests, estimated from its code"
	what := fmt.Sprintf("%s idle, %d objects: ", b.idle, workload.ReleaseSize)
	others := shown(what+"requests except the lease", seen.count(noLease), "", peer)
	leases := shown(what+"lease renewals", seen.count(isLease), "", "")
	writes := shown(what+"other writes", seen.count(otherWrites), "", "")
	if b.idle != idleTime {
		return []result{others, leases, writes}, nil
	}
	return []result{others.atMost(60), leases.atMost(60), writes.atMost(0)}, nil
}
