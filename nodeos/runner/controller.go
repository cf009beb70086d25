// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Config configures a Controller.
type Config struct {
	// HostID is the host's identity, as in its certificate.
	HostID string
	// Host is the machine.
	Host nodeos.Host
	// Tasks maps the task names of plans to tasks.
	Tasks Registry
	// Journal is the host's journal; the caller closes it after Serve.
	Journal *Journal
	// Runtime is the interface that tasks use.
	Runtime nodeos.Runtime
	// Sequencer plans sequences; nil means nodeos.Plan.
	Sequencer nodeos.Sequencer
	// Resources runs the controllers of the host's resources; optional.
	Resources nodeos.V1Alpha2Controller
	// Machine, if set, receives every inventory of the machine.
	Machine *Machine
	// Policy is the host's configuration for orders.
	Policy Policy
	// Now is the clock.
	Now func() time.Time
	// Log is the agent's log.
	Log *zap.Logger
}

// DefaultRestartInterval is the minimum time between two remote restarts if the
// policy sets none.
const DefaultRestartInterval = 10 * time.Minute

// Controller runs sequences on a host; it implements nodeos.Controller. All
// methods are safe for concurrent use; Serve is called once.
type Controller struct {
	cfg     Config
	wake    chan struct{} // holds one token: the state changed
	started chan struct{} // closed after the first inspection
	ended   chan struct{} // closed when Serve ended

	mu      sync.Mutex
	state   State
	changed chan struct{} // closed and replaced at each change
	exit    *nodeos.RebootCommand
}

var _ nodeos.Controller = (*Controller)(nil)

// New returns a controller that is idle until Serve.
func New(cfg Config) (*Controller, error) {
	if cfg.Runtime == nil {
		return nil, nodeos.ErrUndefinedRuntime
	}
	switch {
	case cfg.HostID == "":
		return nil, errors.New("controller configuration: HostID is required")
	case cfg.Host == nil, cfg.Journal == nil, cfg.Now == nil, cfg.Log == nil, cfg.Tasks == nil:
		return nil, errors.New("controller configuration: Host, Tasks, Journal, Now and Log are required")
	}
	if cfg.Sequencer == nil {
		cfg.Sequencer = nodeos.SequencerFunc(nodeos.Plan)
	}
	if cfg.Policy.RestartInterval == 0 {
		cfg.Policy.RestartInterval = DefaultRestartInterval
	}
	return &Controller{
		cfg: cfg, state: cfg.Journal.State(),
		wake: make(chan struct{}, 1), started: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}),
	}, nil
}

// Runtime implements nodeos.Controller.
func (c *Controller) Runtime() nodeos.Runtime { return c.cfg.Runtime }

// Sequencer implements nodeos.Controller.
func (c *Controller) Sequencer() nodeos.Sequencer { return c.cfg.Sequencer }

// V1Alpha2 implements nodeos.Controller; nil when there are no resources.
func (c *Controller) V1Alpha2() nodeos.V1Alpha2Controller { return c.cfg.Resources }

// Run implements nodeos.Controller: it plans the sequence, acquires the lock and
// writes the journal before it returns. It waits until Serve has inspected the
// machine.
func (c *Controller) Run(ctx context.Context, seq nodeos.Sequence, data nodeos.Request, setters ...nodeos.ControllerOption) (nodeos.Ticket, error) {
	order := Order{Sequence: seq, Request: data, Options: nodeos.DefaultControllerOptions()}
	for _, set := range setters {
		if err := set(&order.Options); err != nil {
			return nodeos.Ticket{}, fmt.Errorf("run %s: %w", seq, err)
		}
	}
	ticket, err := c.run(ctx, order)
	if err != nil && data != nil {
		c.cfg.Runtime.Events().Publish(data.Header().OperationID, nodeos.EventSequenceRefused{
			Sequence: seq, Reason: nodeos.ReasonOf(err, "Refused"), Error: truncate(err.Error()),
		})
	}
	return ticket, err
}

func (c *Controller) run(ctx context.Context, order Order) (nodeos.Ticket, error) {
	plan, err := c.cfg.Sequencer.Plan(order.Sequence, c.cfg.Runtime.State().Platform().Mode(), order.Request)
	if err != nil {
		return nodeos.Ticket{}, fmt.Errorf("plan %s: %w", order.Sequence, err)
	}
	if err := c.cfg.Tasks.Check(plan); err != nil {
		return nodeos.Ticket{}, err
	}
	order.Plan = plan
	var ticket nodeos.Ticket
	err = c.change(ctx, func(s State) (State, []Action, error) {
		next, actions, t, err := Admit(s, order, c.cfg.Policy, c.cfg.Now())
		ticket = t
		return next, actions, err
	})
	if err != nil {
		return nodeos.Ticket{}, err
	}
	return ticket, nil
}

// Decide commits or rolls back the OS on trial, or resumes or aborts a paused
// operation. It returns when the verdict is on disk.
func (c *Controller) Decide(ctx context.Context, d nodeos.Decision) error {
	return c.change(ctx, func(s State) (State, []Action, error) {
		return Decide(s, d, c.cfg.Policy, c.cfg.Now())
	})
}

// Extend moves the commit deadline and returns it; the zero time means that
// the trial has no deadline.
func (c *Controller) Extend(ctx context.Context, e nodeos.Extension) (time.Time, error) {
	var until time.Time
	err := c.change(ctx, func(s State) (State, []Action, error) {
		next, actions, at, err := Extend(s, e, c.cfg.Policy, c.cfg.Now())
		until = at
		return next, actions, err
	})
	return until, err
}

// ResetFence clears the stored fence; only an administrator may call it.
func (c *Controller) ResetFence(ctx context.Context) error {
	return c.change(ctx, func(s State) (State, []Action, error) { return ResetFence(s), nil, nil })
}

// Fence returns the highest accepted fence.
func (c *Controller) Fence() nodeos.Fence {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Fence
}

// Operation returns the status of an operation.
func (c *Controller) Operation(id string) (nodeos.OperationStatus, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Status(id)
}

// Wait returns when the operation's status satisfies fits, or an error when ctx
// ends, the operation is unknown, or Serve ended.
func (c *Controller) Wait(ctx context.Context, id string, fits func(nodeos.OperationStatus) bool) (nodeos.OperationStatus, error) {
	for {
		c.mu.Lock()
		st, ok := c.state.Status(id)
		changed := c.changed
		c.mu.Unlock()
		if !ok {
			return st, nodeos.Refuse("NotFound", "operation %s not found", id)
		}
		if fits(st) {
			return st, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return st, ctx.Err()
		case <-c.ended:
			return st, fmt.Errorf("wait for operation %s: the controller stopped; the operation is %s", id, st.State)
		}
	}
}

// Facts returns the facts of the host.
func (c *Controller) Facts(ctx context.Context) (nodeos.HostFacts, error) {
	inv, err := c.inspect(ctx)
	if err != nil {
		return nodeos.HostFacts{}, err
	}
	c.mu.Lock()
	s := c.state.clone()
	c.mu.Unlock()
	f := factsOf(s, inv)
	f.HostID, f.Mode, f.ObservedAt = c.cfg.HostID, c.cfg.Runtime.State().Platform().Mode(), c.cfg.Now()
	if f.NodeName, err = c.cfg.Runtime.NodeName(); err != nil {
		return nodeos.HostFacts{}, fmt.Errorf("node name: %w", err)
	}
	return f, nil
}

// inspect reads the state of the machine.
func (c *Controller) inspect(ctx context.Context) (nodeos.Inventory, error) {
	inv, err := c.cfg.Host.Inspect(ctx)
	if err != nil {
		return nodeos.Inventory{}, fmt.Errorf("inspect the host: %w", err)
	}
	if c.cfg.Machine != nil {
		c.cfg.Machine.Observe(inv)
	}
	return inv, nil
}

// factsOf combines the journal and the inventory.
func factsOf(s State, inv nodeos.Inventory) nodeos.HostFacts {
	f := nodeos.HostFacts{
		InstallationID: s.InstallationID, Inventory: inv,
		Denied: s.Denied, Committed: s.Committed, HighWater: s.HighWater, Fence: s.Fence, Trial: s.Trial,
	}
	if slot, ok := inv.Staged(); ok {
		f.Staged = &slot
	}
	if slot, ok := inv.Previous(); ok {
		f.Previous = &slot
	}
	if s.Op != nil {
		f.Operation = &s.Op.OperationStatus
	}
	for i, st := range slices.Backward(s.Recent) {
		if st.Sequence != nodeos.SequenceBoot && st.Sequence != nodeos.SequenceInitialize {
			f.Last = &s.Recent[i]
			break
		}
	}
	return f
}

// change applies a change after the first inspection: it's decided purely,
// journaled, then its actions are applied.
func (c *Controller) change(ctx context.Context, f func(State) (State, []Action, error)) error {
	select {
	case <-c.started:
	case <-c.ended:
		return errors.New("the host is going down")
	case <-ctx.Done():
		return fmt.Errorf("the host is not ready: %w", ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apply(f)
}

// apply is change for callers that hold the lock.
func (c *Controller) apply(f func(State) (State, []Action, error)) error {
	if c.exit != nil {
		return errors.New("the host is going down")
	}
	next, actions, err := f(c.state)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(next, c.state) {
		if err := c.cfg.Journal.Append(next); err != nil {
			return err
		}
		c.state = next
		close(c.changed)
		c.changed = make(chan struct{})
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	for _, a := range actions {
		switch a := a.(type) {
		case Publish:
			c.cfg.Runtime.Events().Publish(a.OperationID, a.Payload)
		case Exit:
			c.exit = &a.Cmd
		}
	}
	return nil
}

// step applies an event of the loop.
func (c *Controller) step(e Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apply(func(s State) (State, []Action, error) {
		next, actions := Step(s, e, c.cfg.Now())
		return next, actions, nil
	})
}

// requestOf decodes the request of an operation.
func requestOf(op *Operation) (nodeos.Request, error) {
	if !json.Valid(op.Request) {
		return nil, fmt.Errorf("decode the request of operation %s: not JSON", op.ID)
	}
	return nodeos.UnmarshalRequest(op.Request)
}
