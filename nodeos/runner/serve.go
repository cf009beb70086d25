// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/config/backoff"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// retryPause is the delay before the loop retries a failed journal write or
// inspection.
const retryPause = 5 * time.Second

// job is a running activity.
type job struct {
	activity Activity
	cancel   context.CancelFunc
	result   chan Event
}

// Serve inspects the machine, resumes the open operation, and runs accepted
// operations until ctx ends (nil) or the machine goes down (a RebootError: the
// process must exit). When ctx ends, the running activity is canceled and
// awaited; the next Serve starts it again.
func (c *Controller) Serve(ctx context.Context) error {
	defer close(c.ended)
	if !c.begin(ctx) {
		return nil
	}
	close(c.started)
	var running *job
	defer func() {
		if running != nil {
			running.cancel()
			<-running.result
		}
	}()
	for {
		if ctx.Err() != nil {
			return nil
		}
		running = c.reconcile(ctx, running)
		if cmd := c.exiting(); cmd != nil {
			return nodeos.RebootError{Cmd: *cmd}
		}
		running = c.wait(ctx, running)
	}
}

// Boot runs the boot sequence once per boot of the machine, unless an operation
// is open, which starts the services itself. It waits until Serve has inspected
// the machine and returns when the sequence is accepted.
func (c *Controller) Boot(ctx context.Context) error {
	select {
	case <-c.started:
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	id := "boot/" + c.state.BootID
	c.mu.Unlock()
	_, err := c.Run(ctx, nodeos.SequenceBoot, nodeos.PlainRequest{Order: nodeos.Order{OperationID: id, Caller: agentCaller}})
	if errors.Is(err, nodeos.ErrLocked) {
		return nil
	}
	return err
}

// begin inspects the machine until it succeeds; false means that ctx ended.
func (c *Controller) begin(ctx context.Context) bool {
	if n := c.cfg.Journal.Damaged(); n > 0 {
		c.cfg.Log.Error("skipped damaged journal records", zap.Int("damaged", n))
	}
	for {
		inv, err := c.inspect(ctx)
		if err == nil {
			err = c.step(Started{Inventory: inv})
		}
		if err == nil {
			return true
		}
		c.cfg.Log.Error("cannot inspect the host; retrying", zap.Error(err))
		if backoff.Wait(ctx, retryPause) != nil {
			return false
		}
	}
}

// exiting returns the reboot command once the machine goes down.
func (c *Controller) exiting() *nodeos.RebootCommand {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exit
}

// snapshot returns the state and its required activity.
func (c *Controller) snapshot() (State, Activity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, ActivityOf(c.state, c.cfg.Now())
}

// reconcile starts or cancels the job according to the required activity; wait
// receives the result of a canceled job.
func (c *Controller) reconcile(ctx context.Context, running *job) *job {
	state, want := c.snapshot()
	switch {
	case running != nil && running.activity == want:
		return running
	case running != nil:
		running.cancel()
		return running
	case want.Kind == RunPhase, want.Kind == RunUndo:
		return c.start(ctx, state, want)
	case want.Kind == Stopping:
		c.report(ctx, Stopped{OperationID: want.OperationID})
	}
	return nil
}

// wait returns when the job ended, the state changed, a deadline passed, or ctx
// ended.
func (c *Controller) wait(ctx context.Context, running *job) *job {
	state, want := c.snapshot()
	if running == nil && want.Kind != Idle {
		return nil // reconcile starts it
	}
	var due <-chan time.Time
	if at, ok := Wake(state, c.cfg.Now()); ok {
		timer := time.NewTimer(max(at.Sub(c.cfg.Now()), time.Millisecond))
		defer timer.Stop()
		due = timer.C
	}
	var result chan Event
	if running != nil {
		result = running.result
	}
	select {
	case <-ctx.Done():
	case <-c.wake:
	case <-due:
		c.report(ctx, Ticked{})
	case e := <-result:
		running.cancel()
		running = nil
		// A job that was interrupted by the agent's shutdown has no result: the
		// next start runs it again.
		if ctx.Err() == nil {
			c.report(ctx, e)
		}
	}
	return running
}

// report applies an event and retries until it's journaled: nothing is done
// before that.
func (c *Controller) report(ctx context.Context, e Event) {
	for {
		err := c.step(e)
		if err == nil {
			return
		}
		c.cfg.Log.Error("cannot write the journal; retrying", zap.Error(err))
		if backoff.Wait(ctx, retryPause) != nil {
			return
		}
	}
}

// start runs an activity in a goroutine, which sends exactly one result to the
// job's channel.
func (c *Controller) start(ctx context.Context, s State, a Activity) *job {
	ctx, cancel := context.WithCancel(ctx)
	j := &job{activity: a, cancel: cancel, result: make(chan Event, 1)}
	op := s.Op.clone()
	go func() {
		if a.Kind == RunUndo {
			j.result <- c.runUndo(ctx, s, op)
			return
		}
		j.result <- c.runPhase(ctx, s, op)
	}()
	return j
}

// runPhase runs one attempt at the current phase.
func (c *Controller) runPhase(ctx context.Context, s State, op *Operation) Event {
	begin := c.cfg.Now()
	p := op.phase()
	c.cfg.Runtime.Events().Publish(op.ID, nodeos.EventPhase{
		Sequence: op.Sequence, Phase: p.Name, Index: op.Index + 1, Count: len(op.Plan), Try: op.Try, Action: nodeos.ActionStart,
	})
	end := PhaseEnded{OperationID: op.ID, Index: op.Index, Try: op.Try}
	run, err := c.runOf(s, op, begin)
	if err == nil {
		run.timeout = p.Timeout
		err = run.runConcurrently(ctx, p.Tasks)
	}
	end.Took = c.cfg.Now().Sub(begin)
	if down, ok := errors.AsType[nodeos.RebootError](err); ok {
		end.Restart = &down.Cmd
		return end
	}
	end.Failure = failureOf(err)
	return end
}

// undoTimeout limits all compensations of an operation together.
const undoTimeout = 15 * time.Minute

// runUndo runs the compensations of the phases that ran.
func (c *Controller) runUndo(ctx context.Context, s State, op *Operation) Event {
	run, err := c.runOf(s, op, c.cfg.Now())
	if err == nil {
		run.phase, run.timeout = "undo", undoTimeout
		err = run.runInOrder(ctx, op.undoTasks())
	}
	return UndoEnded{OperationID: op.ID, Failure: failureOf(err)}
}

// runOf returns the inputs of an operation's tasks.
func (c *Controller) runOf(s State, op *Operation, now time.Time) (phaseRun, error) {
	request, err := requestOf(op)
	if err != nil {
		return phaseRun{}, err
	}
	return phaseRun{
		registry: c.cfg.Tasks, runtime: c.cfg.Runtime, now: c.cfg.Now,
		log:      c.cfg.Log.With(zap.String("operation", op.ID), zap.Stringer("sequence", op.Sequence), zap.String("phase", op.Phase)),
		sequence: op.Sequence, operation: op.ID, phase: op.Phase,
		call: nodeos.TaskCall{
			OperationID: op.ID, Request: request, Try: op.Try, Now: now, From: op.From, Memory: s.memory(c.cfg.HostID),
		},
	}, nil
}
