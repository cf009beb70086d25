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

// imageStore is an in-memory ImageSource with signed and unsigned images.
type imageStore struct {
	mu      sync.Mutex
	content map[string][]byte
	signed  map[string]bool
	fetched int
}

func (s *imageStore) Verify(_ context.Context, ref nodeos.ImageRef) (tasks.Verified, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.content[ref.Digest]
	if !ok {
		return tasks.Verified{}, fmt.Errorf("%s not found", ref)
	}
	if !s.signed[ref.Digest] {
		return tasks.Verified{}, nodeos.Refuse("Unsigned", "%s has no signature", ref)
	}
	image, err := sim.ImageOf(ref.Repository, data)
	return tasks.Verified{Image: image, Proof: data}, err
}

func (s *imageStore) Fetch(_ context.Context, v tasks.Verified) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fetched++
	data, ok := v.Proof.([]byte)
	if !ok {
		return nil, errors.New("image was not verified by this store")
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// env is a simulated machine with an agent, which is restarted as a supervisor
// would.
type env struct {
	t        *testing.T
	dir      string
	images   *imageStore
	platform string
	policy   Policy
	// onEvent, if set, receives each published event.
	onEvent func(nodeos.Payload)
	// power, if set, is called before each write of the machine.
	power func(point string) error
	// registry, if set, changes the tasks.
	registry func(Registry)

	mu    sync.Mutex // guards onEvent and seen
	boots int
	last  sim.BootResult
	seen  []nodeos.Payload
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{t: t, dir: t.TempDir(), platform: "metal", images: &imageStore{content: map[string][]byte{}, signed: map[string]bool{}}}
	image, content := e.image(sim.Document{Product: "os", Version: "1.0.0"})
	must(t, sim.Create(filepath.Join(e.dir, "machine"), image, content))
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// image adds a signed image to the store.
func (e *env) image(d sim.Document) (nodeos.Image, []byte) {
	e.t.Helper()
	content, err := json.Marshal(d)
	must(e.t, err)
	image, err := sim.ImageOf("registry.test/os", content)
	must(e.t, err)
	e.images.content[image.Ref.Digest], e.images.signed[image.Ref.Digest] = content, true
	return image, content
}

// observe calls f with each later event.
func (e *env) observe(f func(nodeos.Payload)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onEvent = f
}

// boot power-cycles the machine.
func (e *env) boot() {
	e.t.Helper()
	var err error
	e.last, err = sim.Boot(e.t.Context(), filepath.Join(e.dir, "machine"), sim.BootOptions{})
	must(e.t, err)
	e.boots++
}

// tee publishes to a ring and to see.
type tee struct {
	*events.Ring
	see func(nodeos.Payload)
}

func (p tee) Publish(id string, payload nodeos.Payload) {
	p.Ring.Publish(id, payload)
	p.see(payload)
}

// agent returns a new controller; stop closes its parts.
func (e *env) agent(ctx context.Context) (c *Controller, stop func()) {
	e.t.Helper()
	host, err := sim.Open(sim.Config{Dir: filepath.Join(e.dir, "machine"), Power: e.power})
	must(e.t, err)
	journal, err := OpenJournal(filepath.Join(e.dir, "agent"))
	must(e.t, err)
	ring, err := events.New(events.Config{BootID: e.last.BootID, First: events.FirstOf(journal.StartIn(e.last.BootID)), Now: time.Now})
	must(e.t, err)
	logging, err := logs.NewManager(ctx, logs.Config{Now: time.Now})
	must(e.t, err)
	where, err := platform.New(e.platform, platform.Config{Dir: e.dir, Hostname: os.Hostname, Addresses: func() ([]net.Addr, error) { return nil, nil }})
	must(e.t, err)
	cfg, err := config.Open(filepath.Join(e.dir, "machine.yaml"), nil)
	must(e.t, err)
	all, err := tasks.All(tasks.Config{Host: host, Images: e.images, Platform: where})
	must(e.t, err)
	if e.registry != nil {
		e.registry(all)
	}
	machine := NewMachine(cfg)
	see := func(p nodeos.Payload) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.seen = append(e.seen, p)
		if e.onEvent != nil {
			e.onEvent(p)
		}
	}
	rt, err := NewRuntime(RuntimeConfig{
		Config: cfg, Platform: where, Machine: machine, Journal: journal, Events: tee{ring, see}, Logging: logging, NodeName: "node-1",
	})
	must(e.t, err)
	c, err = New(Config{
		HostID: "host-1", Host: host, Tasks: all, Journal: journal, Runtime: rt, Machine: machine,
		Policy: e.policy, Now: time.Now, Log: zap.NewNop(),
	})
	must(e.t, err)
	return c, func() {
		must(e.t, logging.Close())
		must(e.t, journal.Close())
	}
}

// runAgent runs the agent until f returns and returns the result of Serve.
func (e *env) runAgent(f func(ctx context.Context, c *Controller)) error {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	defer cancel()
	c, stop := e.agent(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- c.Serve(ctx) }()
	f(ctx, c)
	cancel()
	return <-served
}

// runUntil acts as the supervisor: it runs the agent and boots the machine after
// each restart until f returns true.
func (e *env) runUntil(f func(ctx context.Context, c *Controller) (done bool)) {
	e.t.Helper()
	if e.boots == 0 {
		e.boot()
	}
	for range 50 {
		done := false
		err := e.runAgent(func(ctx context.Context, c *Controller) { done = f(ctx, c) })
		if done {
			return
		}
		if err == nil || nodeos.IsRebootError(err) {
			if nodeos.IsRebootError(err) {
				e.boot()
			}
			continue
		}
		e.t.Fatalf("the agent ended: %v", err)
	}
	e.t.Fatal("not done after 50 starts of the agent")
}

// upgrade returns a request for an image.
func upgrade(id string, image nodeos.Image) nodeos.UpgradeRequest {
	return nodeos.UpgradeRequest{
		Order: nodeos.Order{OperationID: id, Caller: "test"}, Image: image.Ref, Product: image.Product, Version: image.Version,
		CommitDeadline: 10 * time.Minute,
	}
}

// settle runs an order until its operation is done, on trial or paused.
func (e *env) settle(seq nodeos.Sequence, req nodeos.Request) nodeos.OperationStatus {
	e.t.Helper()
	return e.follow(seq, req, func(s nodeos.OperationStatus) bool {
		return s.State.Done() || s.State == nodeos.OperationOnTrial || s.State == nodeos.OperationPaused
	})
}

// follow runs an order, again after each agent restart, until it fits.
func (e *env) follow(seq nodeos.Sequence, req nodeos.Request, fits func(nodeos.OperationStatus) bool) nodeos.OperationStatus {
	e.t.Helper()
	var st nodeos.OperationStatus
	e.runUntil(func(ctx context.Context, c *Controller) bool {
		if _, err := c.Run(ctx, seq, req); err != nil {
			if st, ok := c.Operation(req.Header().OperationID); ok || ctx.Err() != nil {
				e.t.Logf("%s again: %v (%s)", seq, err, st.State)
				return false
			}
			e.t.Fatalf("%s: %v", seq, err)
		}
		var err error
		st, err = c.Wait(ctx, req.Header().OperationID, fits)
		return err == nil
	})
	return st
}

// decide gives a verdict and returns the operation when it's done.
func (e *env) decide(id string, v nodeos.Verdict) nodeos.OperationStatus {
	e.t.Helper()
	var st nodeos.OperationStatus
	given := false
	e.runUntil(func(ctx context.Context, c *Controller) bool {
		if !given {
			must(e.t, c.Decide(ctx, nodeos.Decision{Order: nodeos.Order{OperationID: id, Caller: "test"}, Verdict: v}))
			given = true
		}
		var err error
		st, err = c.Wait(ctx, id, func(s nodeos.OperationStatus) bool { return s.State.Done() })
		return err == nil
	})
	return st
}

// facts returns the current facts of the host.
func (e *env) facts() nodeos.HostFacts {
	e.t.Helper()
	var f nodeos.HostFacts
	e.runUntil(func(ctx context.Context, c *Controller) bool {
		<-c.started
		var err error
		f, err = c.Facts(ctx)
		must(e.t, err)
		return true
	})
	return f
}
