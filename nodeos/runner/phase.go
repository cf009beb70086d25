// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// isRefusal reports whether an error is a refusal.
func isRefusal(err error) bool {
	var r *nodeos.Refusal
	return errors.As(err, &r)
}

// errPanic marks an error that was a panic.
var errPanic = errors.New("panic")

// phaseRun contains the inputs for running a phase's tasks.
type phaseRun struct {
	registry  Registry
	runtime   nodeos.Runtime
	log       *zap.Logger
	now       func() time.Time
	sequence  nodeos.Sequence
	operation string
	phase     string
	timeout   time.Duration
	call      nodeos.TaskCall
}

// runConcurrently runs tasks concurrently and returns when all have ended: nil, the
// first error, or a RebootError when a task took the machine down. The first
// error cancels the other tasks.
func (r phaseRun) runConcurrently(ctx context.Context, tasks []nodeos.Task) error {
	ctx, cancel := r.withTimeout(ctx)
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	for i, task := range tasks {
		wg.Go(func() {
			err := r.runTask(ctx, task, i+1, len(tasks))
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if first == nil || (nodeos.IsRebootError(err) && !nodeos.IsRebootError(first)) {
				first = err
			}
			cancel()
		})
	}
	wg.Wait()
	return first
}

// runInOrder runs all tasks one after another and returns the first error.
func (r phaseRun) runInOrder(ctx context.Context, tasks []nodeos.Task) error {
	ctx, cancel := r.withTimeout(ctx)
	defer cancel()
	var first error
	for i, task := range tasks {
		if err := r.runTask(ctx, task, i+1, len(tasks)); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// withTimeout returns ctx with the phase's timeout.
func (r phaseRun) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if r.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("phase %s took longer than %s", r.phase, r.timeout))
}

// runTask runs one task, publishes its events, and converts a panic to an error.
func (r phaseRun) runTask(ctx context.Context, task nodeos.Task, index, count int) error {
	run, name, err := r.registry.setup(r.sequence, task, r.call)
	if err != nil {
		return err
	}
	if run == nil {
		return nil
	}
	event := nodeos.EventTask{
		Sequence: r.sequence, Phase: r.phase, Task: name, Index: index, Count: count, Action: nodeos.ActionStart,
	}
	r.runtime.Events().Publish(r.operation, event)
	log := r.log.With(zap.String("task", name))
	log.Info("task starts")
	begin := r.now()
	err = recovered(func() error { return run(ctx, log, r.runtime) })
	if cause := context.Cause(ctx); err != nil && errors.Is(err, context.DeadlineExceeded) && cause != nil {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	event.Action, event.Duration = nodeos.ActionStop, r.now().Sub(begin)
	switch {
	case err == nil, nodeos.IsRebootError(err):
		log.Info("task is done", zap.Duration("took", event.Duration))
	default:
		err = fmt.Errorf("task %s: %w", name, err)
		event.Error = truncate(err.Error())
		log.Warn("task failed", zap.Duration("took", event.Duration), zap.String("error", event.Error))
	}
	r.runtime.Events().Publish(r.operation, event)
	return err
}

// recovered calls f and returns its error, or its panic as an error.
func recovered(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, v, debug.Stack())
		}
	}()
	return f()
}
