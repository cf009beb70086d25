// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
	"github.com/lockstep-dev/lockstep/reconciler/rollout"
	"github.com/lockstep-dev/lockstep/test/openshift"
)

// The values of the cluster-version-operator, measured on this kind of machine
// with real payloads. Its packages can't be linked.
const (
	cvoLoadSeconds = 0.09 // per MiB
	cvoLoadMiB     = 28   // allocated a MiB
	cvoGraphMillis = 318  // 20,000 tasks
)

// pureRounds is the number of repetitions per round of work without a server.
const pureRounds = 3

// payloadRows loads a real payload and builds its graph.
func payloadRows(ctx context.Context, b *bench) ([]result, error) {
	tree, size, err := openshift.Payload(".")
	if errors.Is(err, fs.ErrNotExist) {
		b.log("payload: skipped: %v; set LOCKSTEP_SHARED to the directory of data/openshift-payload.tar.gz", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	options := payload.LoadOptions{Selection: payload.Selection{Profile: "self-managed-high-availability"}}
	mebibytes := float64(size) / (1 << 20)
	var seconds, allocated []float64
	tasks := 0
	for range pureRounds * b.rounds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		took, err := self(func() error {
			p, err := payload.LoadUnverified(tree, options)
			if err != nil {
				return err
			}
			tasks = taskgraph.Build(p.Manifests, payload.Updating, taskgraph.Order{}).Len()
			return nil
		})
		if err != nil {
			return nil, err
		}
		runtime.ReadMemStats(&after)
		seconds = append(seconds, took.cpu.Seconds()/mebibytes)
		allocated = append(allocated, float64(after.TotalAlloc-before.TotalAlloc)/(1<<20)/mebibytes)
	}
	what := fmt.Sprintf("real payload, %.1f MiB, %d tasks: ", mebibytes, tasks)
	return []result{
		shown(what+"CPU time per MiB", 1000*median(seconds), "ms", "CVO 90 ms").atMost(1000 * cvoLoadSeconds / 2),
		shown(what+"allocated per MiB", median(allocated), "MiB", "CVO 28 MiB").atMost(cvoLoadMiB / 2),
	}, nil
}

// graphRows builds and walks graphs whose tasks do nothing.
func graphRows(ctx context.Context, b *bench) ([]result, error) {
	const tasks = 20_000
	ms := make([]payload.Manifest, 0, tasks)
	for i := range tasks {
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": "m" + strconv.Itoa(i), "namespace": "ns" + strconv.Itoa(i%50)},
		}})
		if err != nil {
			return nil, err
		}
		m.RunLevel, m.Component = i/1000, "c"+strconv.Itoa(i%200)
		ms = append(ms, m)
	}
	var out []result
	for _, state := range []payload.State{payload.Initializing, payload.Updating, payload.Reconciling} {
		var took []float64
		for range pureRounds * b.rounds {
			runtime.GC()
			began := time.Now()
			r := taskgraph.Walk(ctx, taskgraph.Build(ms, state, taskgraph.Order{}), reconcileWidth, func(context.Context, *payload.Manifest) error { return nil }, nil)
			took = append(took, milliseconds(time.Since(began)))
			if !r.Complete() {
				return nil, fmt.Errorf("walked %d of %d tasks: %w", r.Done, tasks, ctx.Err())
			}
		}
		line := shown("graph of 20,000 tasks, "+state.String()+": build and walk", median(took), "ms", "").atMost(50)
		if state == payload.Updating {
			line.Peer = fmt.Sprintf("CVO %d ms", cvoGraphMillis)
		}
		out = append(out, line)
	}
	return out, nil
}

// planRows plans a pool of 5,000 hosts, half of which need an update.
func planRows(ctx context.Context, b *bench) ([]result, error) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	in := planInput(5000, now)
	var took []float64
	claimed := 0
	for range pureRounds * b.rounds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		runtime.GC()
		began := time.Now()
		decision := rollout.Plan(in, now)
		took = append(took, milliseconds(time.Since(began)))
		claimed = len(decision.Steps)
	}
	return []result{
		shown(fmt.Sprintf("rollout plan over 5,000 hosts, %d steps", claimed), median(took), "ms", "").atMost(20),
	}, nil
}

func planInput(hosts int, now time.Time) rollout.Input {
	old, target := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64)
	in := rollout.Input{Epoch: 7, ClusterNodes: hosts, Pool: rollout.Pool{
		UID: "pool", Name: "workers", MaxUnavailable: intstr.FromString("5%"), MaxParallelStaging: 10, FailureThreshold: 1,
		Target: ledger.Image{Version: "2.0.0", Digest: target}, Ref: nodeos.ImageRef{Repository: "registry.example.com/os", Digest: target},
		DrainTimeout: 15 * time.Minute, DrainDeadline: rollout.DeadlineAbort, GateTimeout: 15 * time.Minute, Soak: 2 * time.Minute,
		BootDeadline: 10 * time.Minute, CommitDeadline: 30 * time.Minute,
	}}
	in.Ledger = ledger.Document{Fence: ledger.Fence{Epoch: 7}, Pools: map[string]ledger.Pool{"pool": {Name: "workers", Since: now.Add(-time.Hour)}}}
	attempt := in.Pool.Attempt("")
	for i := range hosts {
		name := fmt.Sprintf("node-%04d", i)
		digest, version := old, "1.0.0"
		if i%2 == 1 {
			digest, version = target, "2.0.0"
		}
		facts := &nodeos.HostFacts{Inventory: nodeos.Inventory{
			BootID: "b1", Booted: nodeos.Booted{Slot: "A", Version: version, Digest: digest, Confirmed: true},
			Slots: []nodeos.Slot{{Name: "A", State: nodeos.SlotGood, Image: nodeos.Image{Ref: nodeos.ImageRef{Digest: digest}}}, {Name: "B"}},
		}}
		if i%4 == 0 {
			facts.Slots[1] = nodeos.Slot{Name: "B", State: nodeos.SlotStaged, Image: nodeos.Image{Ref: in.Pool.Ref}}
			facts.Last = &nodeos.OperationStatus{ID: attempt + "-stage-1-0", Attempt: attempt, State: nodeos.OperationSucceeded}
		}
		in.Members = append(in.Members, rollout.Member{Selected: true, Agent: rollout.Agent{Facts: facts}, Node: rollout.Node{
			Name: name, UID: "uid-" + name, Ready: true, BootID: "b1", Created: now.Add(-time.Duration(i%977) * time.Hour),
			Labels: map[string]string{"topology.kubernetes.io/zone": strconv.Itoa(i % 3)},
		}})
	}
	return in
}
