// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/config"
	"github.com/lockstep-dev/lockstep/nodeos/events"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/nodeos/logs"
	"github.com/lockstep-dev/lockstep/nodeos/platform"
	"github.com/lockstep-dev/lockstep/nodeos/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shelf is an image source: images by digest, some of them signed.
type shelf struct {
	mu      sync.Mutex
	content map[string][]byte
	signed  map[string]bool
	fetched int
}

func (s *shelf) Verify(_ context.Context, ref nodeos.ImageRef) (tasks.Verified, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.content[ref.Digest]
	if !ok {
		return tasks.Verified{}, fmt.Errorf("%s: not there", ref)
	}
	if !s.signed[ref.Digest] {
		return tasks.Verified{}, nodeos.Refuse("Unsigned", "%s has no signature", ref)
	}
	image, err := sim.ImageOf(ref.Repository, data)
	return tasks.Verified{Image: image, Proof: data}, err
}

func (s *shelf) Fetch(_ context.Context, v tasks.Verified) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetched++
	data, ok := v.Proof.([]byte)
	if !ok {
		return nil, errors.New("not verified here")
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// rig is a simulated machine with its agent's parts, started again and again
// as a supervisor would.
type rig struct {
	t        *testing.T
	dir      string
	shelf    *shelf
	platform string
	policy   Policy
	// onEvent, if not nil, sees each published event.
	onEvent func(nodeos.Payload)
	// power, if not nil, is the machine's power switch.
	power func(point string) error
	// registry, if not nil, changes the tasks.
	registry func(Registry)

	mu    sync.Mutex // guards onEvent and seen
	boots int
	last  sim.BootResult
	seen  []nodeos.Payload
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), platform: "metal", shelf: &shelf{content: map[string][]byte{}, signed: map[string]bool{}}}
	image, content := r.image(sim.Document{Product: "os", Version: "1.0.0"})
	must(t, sim.Create(filepath.Join(r.dir, "machine"), image, content))
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// image puts a signed image on the shelf.
func (r *rig) image(d sim.Document) (nodeos.Image, []byte) {
	r.t.Helper()
	content, err := json.Marshal(d)
	must(r.t, err)
	image, err := sim.ImageOf("registry.test/os", content)
	must(r.t, err)
	r.shelf.content[image.Ref.Digest], r.shelf.signed[image.Ref.Digest] = content, true
	return image, content
}

// listen shows each event from now on to f.
func (r *rig) listen(f func(nodeos.Payload)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onEvent = f
}

// boot switches the machine off and on.
func (r *rig) boot() {
	r.t.Helper()
	var err error
	r.last, err = sim.Boot(r.t.Context(), filepath.Join(r.dir, "machine"), sim.BootOptions{})
	must(r.t, err)
	r.boots++
}

// tee publishes to a ring and shows each payload to the rig.
type tee struct {
	*events.Ring
	see func(nodeos.Payload)
}

func (p tee) Publish(id string, payload nodeos.Payload) {
	p.Ring.Publish(id, payload)
	p.see(payload)
}

// agent makes the agent's parts; stop ends what they hold.
func (r *rig) agent(ctx context.Context) (c *Controller, stop func()) {
	r.t.Helper()
	host, err := sim.Open(sim.Config{Dir: filepath.Join(r.dir, "machine"), Power: r.power})
	must(r.t, err)
	journal, err := OpenJournal(filepath.Join(r.dir, "agent"))
	must(r.t, err)
	ring, err := events.New(events.Config{BootID: r.last.BootID, First: events.FirstOf(journal.StartIn(r.last.BootID)), Now: time.Now})
	must(r.t, err)
	logging, err := logs.NewManager(ctx, logs.Config{Now: time.Now})
	must(r.t, err)
	where, err := platform.New(r.platform, platform.Config{Dir: r.dir, Hostname: os.Hostname, Addresses: func() ([]net.Addr, error) { return nil, nil }})
	must(r.t, err)
	cfg, err := config.Open(filepath.Join(r.dir, "machine.yaml"), nil)
	must(r.t, err)
	all, err := tasks.All(tasks.Config{Host: host, Images: r.shelf, Platform: where})
	must(r.t, err)
	if r.registry != nil {
		r.registry(all)
	}
	machine := NewMachine(cfg)
	see := func(p nodeos.Payload) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen = append(r.seen, p)
		if r.onEvent != nil {
			r.onEvent(p)
		}
	}
	rt, err := NewRuntime(RuntimeConfig{
		Config: cfg, Platform: where, Machine: machine, Journal: journal, Events: tee{ring, see}, Logging: logging, NodeName: "node-1",
	})
	must(r.t, err)
	c, err = New(Config{
		HostID: "host-1", Host: host, Tasks: all, Journal: journal, Runtime: rt, Machine: machine,
		Policy: r.policy, Now: time.Now, Log: zap.NewNop(),
	})
	must(r.t, err)
	return c, func() {
		must(r.t, logging.Close())
		must(r.t, journal.Close())
	}
}

// live runs the agent's process once, with f beside it, and returns how Serve
// ended. When f returns the process ends.
func (r *rig) live(f func(ctx context.Context, c *Controller)) error {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	c, stop := r.agent(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- c.Serve(ctx) }()
	f(ctx, c)
	cancel()
	return <-served
}

// until plays the supervisor: it runs the agent, and boots the machine each
// time that it goes down, until f says that all is done.
func (r *rig) until(f func(ctx context.Context, c *Controller) (done bool)) {
	r.t.Helper()
	if r.boots == 0 {
		r.boot()
	}
	for range 50 {
		done := false
		err := r.live(func(ctx context.Context, c *Controller) { done = f(ctx, c) })
		if done {
			return
		}
		if err == nil || nodeos.IsRebootError(err) {
			if nodeos.IsRebootError(err) {
				r.boot()
			}
			continue
		}
		r.t.Fatalf("the agent ended with %v", err)
	}
	r.t.Fatal("50 starts of the agent and no end")
}

// upgrade is an order for an image.
func upgrade(id string, image nodeos.Image) nodeos.UpgradeRequest {
	return nodeos.UpgradeRequest{
		Order: nodeos.Order{OperationID: id, Caller: "test"}, Image: image.Ref, Product: image.Product, Version: image.Version,
		CommitDeadline: 10 * time.Minute,
	}
}

// settle gives an order once and returns its operation at rest: done, or on
// trial, or paused.
func (r *rig) settle(seq nodeos.Sequence, req nodeos.Request) nodeos.OperationStatus {
	r.t.Helper()
	return r.follow(seq, req, func(s nodeos.OperationStatus) bool {
		return s.State.Done() || s.State == nodeos.OperationOnTrial || s.State == nodeos.OperationPaused
	})
}

// follow gives an order, again in each life of the agent, until it fits.
func (r *rig) follow(seq nodeos.Sequence, req nodeos.Request, fits func(nodeos.OperationStatus) bool) nodeos.OperationStatus {
	r.t.Helper()
	var st nodeos.OperationStatus
	r.until(func(ctx context.Context, c *Controller) bool {
		if _, err := c.Run(ctx, seq, req); err != nil {
			if st, ok := c.Operation(req.Header().OperationID); ok || ctx.Err() != nil {
				r.t.Logf("%s again: %v (%s)", seq, err, st.State)
				return false
			}
			r.t.Fatalf("%s: %v", seq, err)
		}
		var err error
		st, err = c.Wait(ctx, req.Header().OperationID, fits)
		return err == nil
	})
	return st
}

// decide gives a verdict on an operation and returns it when it's done.
func (r *rig) decide(id string, v nodeos.Verdict) nodeos.OperationStatus {
	r.t.Helper()
	var st nodeos.OperationStatus
	given := false
	r.until(func(ctx context.Context, c *Controller) bool {
		if !given {
			must(r.t, c.Decide(ctx, nodeos.Decision{Order: nodeos.Order{OperationID: id, Caller: "test"}, Verdict: v}))
			given = true
		}
		var err error
		st, err = c.Wait(ctx, id, func(s nodeos.OperationStatus) bool { return s.State.Done() })
		return err == nil
	})
	return st
}

// facts are the host's facts now.
func (r *rig) facts() nodeos.HostFacts {
	r.t.Helper()
	var f nodeos.HostFacts
	r.until(func(ctx context.Context, c *Controller) bool {
		<-c.started
		var err error
		f, err = c.Facts(ctx)
		must(r.t, err)
		return true
	})
	return f
}
