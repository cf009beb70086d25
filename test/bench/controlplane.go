// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// spent is what a contender reports about itself.
type spent struct {
	wall time.Duration
	cpu  time.Duration // of the contender's process
}

// cost is the cost of one measured piece of work.
type cost struct {
	spent
	server   time.Duration // CPU time of the API server and etcd
	requests controlplane.Counts
}

// seconds is the CPU time of client and server.
func (c cost) seconds() float64 { return (c.cpu + c.server).Seconds() }

// plane is a control plane with measurements.
type plane struct {
	*controlplane.Cluster
	log func(format string, args ...any)
}

func newPlane(ctx context.Context, log func(string, ...any)) (*plane, error) {
	began := time.Now()
	cluster, err := controlplane.Start(ctx, controlplane.Options{Profile: controlplane.Bare})
	if err != nil {
		return nil, err
	}
	log("control plane started in %s", time.Since(began).Round(100*time.Millisecond))
	return &plane{Cluster: cluster, log: log}, nil
}

// The pause between two measurements: after work, the API server still
// rebuilds its OpenAPI document and closes watches.
const (
	settleStep = 250 * time.Millisecond
	settleIdle = 50 * time.Millisecond // of CPU time in a step
	settleMost = 8 * time.Second
)

// settle waits until the server is idle.
func (p *plane) settle(ctx context.Context) error {
	deadline := time.Now().Add(settleMost)
	before, err := p.CPU()
	for err == nil && time.Now().Before(deadline) {
		select {
		case <-time.After(settleStep):
		case <-ctx.Done():
			return ctx.Err()
		}
		var now time.Duration
		if now, err = p.CPU(); now-before < settleIdle {
			return err
		}
		before = now
	}
	return err
}

// measure runs the work on an idle server.
func (p *plane) measure(ctx context.Context, work func(context.Context) (spent, error)) (c cost, err error) {
	if err := p.settle(ctx); err != nil {
		return c, err
	}
	before, err := p.RequestCounts(ctx)
	if err != nil {
		return c, err
	}
	used, err := p.CPU()
	if err != nil {
		return c, err
	}
	if c.spent, err = work(ctx); err != nil {
		return c, err
	}
	now, err := p.CPU()
	if err != nil {
		return c, err
	}
	c.server = now - used
	after, err := p.RequestCounts(ctx)
	c.requests = difference(after, before)
	return c, err
}

// difference omits unchanged counters and the server's own requests.
func difference(after, before controlplane.Counts) controlplane.Counts {
	out := controlplane.Counts{}
	for r, n := range after {
		if n -= before[r]; n > 0 && !internal(r) {
			out[r] = n
		}
	}
	return out
}

// internal requests are the server's own: about addresses, registered kinds
// and itself. Those without a resource are discovery, health and the metrics
// that are read here.
func internal(r controlplane.Request) bool {
	switch r.Resource {
	case "", "ipaddresses", "servicecidrs", "leases", "apiservices", "endpoints", "endpointslices":
		return true
	case "customresourcedefinitions":
		return r.Subresource == "status"
	default:
		return r.Group == "flowcontrol.apiserver.k8s.io"
	}
}

// writes are requests that may change something, without dry runs.
func writes(r controlplane.Request) bool {
	switch r.Verb {
	case "GET", "LIST", "WATCH", "WATCHLIST":
		return false
	default:
		return r.DryRun == ""
	}
}

func reads(r controlplane.Request) bool { return r.Verb == "LIST" || r.Verb == "WATCH" }

func all(controlplane.Request) bool { return true }

// self runs work in this process and measures it.
func self(work func() error) (spent, error) {
	used, err := ownCPU()
	if err != nil {
		return spent{}, err
	}
	began := time.Now()
	if err := work(); err != nil {
		return spent{}, err
	}
	wall := time.Since(began)
	now, err := ownCPU()
	return spent{wall: wall, cpu: now - used}, err
}

// ownCPU is the CPU time of this process, user and system.
func ownCPU() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("CPU time of this process: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
