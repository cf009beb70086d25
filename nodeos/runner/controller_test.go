// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
)

// wantState checks the state and reason of an operation.
func wantState(t *testing.T, st nodeos.OperationStatus, state nodeos.OperationState, reason string) {
	t.Helper()
	if st.State != state || st.Reason != reason {
		t.Fatalf("operation %s is %s %s: %s; want %s %s", st.ID, st.State, st.Reason, st.Message, state, reason)
	}
}

func wantBooted(t *testing.T, f nodeos.HostFacts, version string, confirmed bool) {
	t.Helper()
	if f.Booted.Version != version || f.Booted.Confirmed != confirmed {
		t.Fatalf("running %s, confirmed %v; want %s, %v", f.Booted.Version, f.Booted.Confirmed, version, confirmed)
	}
}

func TestUpgradeBootsTheNewOSAndCommitsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0", KubeletVersion: "v1.37.0"})
		wantState(t, e.settle(nodeos.SequenceUpgrade, upgrade("op1", image)), nodeos.OperationOnTrial, "")
		f := e.facts()
		wantBooted(t, f, "2.0.0", false)
		if f.Trial == nil || f.Trial.BootID != f.BootID || f.Operation == nil || f.HighWater["os"] != "1.0.0" {
			t.Errorf("facts on trial: %+v", f)
		}
		wantState(t, e.decide("op1", nodeos.VerdictCommit), nodeos.OperationSucceeded, "")
		f = e.facts()
		wantBooted(t, f, "2.0.0", true)
		if f.Trial != nil || f.HighWater["os"] != "2.0.0" || f.ServicesStopped || f.Previous == nil || f.Previous.Image.Version != "1.0.0" {
			t.Errorf("facts after the commit: %+v", f)
		}
		if e.boots != 2 || e.images.fetched != 1 {
			t.Errorf("%d boots and %d fetches, want 2 and 1", e.boots, e.images.fetched)
		}
		if f.NodeName != "node-1" || f.HostID != "host-1" || f.Backend != "sim" || f.Last == nil || f.Last.ID != "op1" {
			t.Errorf("facts: %+v", f)
		}
	})
}

func TestUncommittedUpgradeRollsBackAtTheDeadlineAndIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0"})
		st := e.follow(nodeos.SequenceUpgrade, upgrade("op1", image), func(s nodeos.OperationStatus) bool { return s.State.Done() })
		wantState(t, st, nodeos.OperationRolledBack, "DeadlineExceeded")
		f := e.facts()
		wantBooted(t, f, "1.0.0", true)
		if len(f.Denied) != 1 || f.Denied[0].Digest != image.Ref.Digest || f.HighWater["os"] != "1.0.0" {
			t.Errorf("facts: %+v", f)
		}
		wantState(t, e.settle(nodeos.SequenceUpgrade, upgrade("op2", image)), nodeos.OperationFailed, "DeniedDigest")
	})
}

func TestFaultyImagesRollBackToThePreviousOS(t *testing.T) {
	no := false
	for name, tc := range map[string]struct {
		doc    sim.Document
		reason string
	}{
		"unhealthy":       {sim.Document{Product: "os", Version: "2.0.0", Healthy: &no}, "TaskFailed"},
		"hanging at boot": {sim.Document{Product: "os", Version: "2.0.0", Faults: sim.Faults{HangAtBoot: true}}, "FellBack"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t)
				image, _ := e.image(tc.doc)
				st := e.follow(nodeos.SequenceUpgrade, upgrade("op1", image), func(s nodeos.OperationStatus) bool { return s.State.Done() })
				wantState(t, st, nodeos.OperationRolledBack, tc.reason)
				f := e.facts()
				wantBooted(t, f, "1.0.0", true)
				if len(f.Denied) != 1 || f.ServicesStopped {
					t.Errorf("facts: %+v", f)
				}
			})
		})
	}
}

func TestRefusedImageChangesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(e *env, req *nodeos.UpgradeRequest)
		reason string
	}{
		"unsigned":        {func(e *env, req *nodeos.UpgradeRequest) { e.images.signed[req.Image.Digest] = false }, "Unsigned"},
		"another version": {func(_ *env, req *nodeos.UpgradeRequest) { req.Version = "2.0.1" }, "NameMismatch"},
		"another product": {func(_ *env, req *nodeos.UpgradeRequest) { req.Product = "other" }, "NameMismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t)
				e.power = func(point string) error { t.Errorf("%s written for a refused image", point); return nil }
				image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0"})
				req := upgrade("op1", image)
				tc.change(e, &req)
				wantState(t, e.settle(nodeos.SequenceUpgrade, req), nodeos.OperationFailed, tc.reason)
				if e.boots != 1 || e.images.fetched != 0 {
					t.Errorf("%d boots, %d fetches", e.boots, e.images.fetched)
				}
			})
		})
	}
}

func TestVersionFloorAllowsOnlyThePreviousCommittedVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		auto := func(id, version string) nodeos.OperationStatus {
			t.Helper()
			image, _ := e.image(sim.Document{Product: "os", Version: version})
			req := upgrade(id, image)
			req.AutoCommit = true
			return e.settle(nodeos.SequenceUpgrade, req)
		}
		wantState(t, auto("to2", "2.0.0"), nodeos.OperationSucceeded, "")
		wantState(t, auto("to3", "3.0.0"), nodeos.OperationSucceeded, "")
		wantState(t, auto("to1", "1.0.0"), nodeos.OperationFailed, "BelowFloor")
		wantState(t, auto("back", "2.0.0"), nodeos.OperationSucceeded, "")
		if f := e.facts(); f.HighWater["os"] != "3.0.0" {
			t.Errorf("the high-water mark is %s", f.HighWater["os"])
		}
		wantState(t, auto("again", "2.5.0"), nodeos.OperationFailed, "BelowFloor")
	})
}

func TestRollbackIsAnOperationAndDeniesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0"})
		req := upgrade("op1", image)
		req.AutoCommit = true
		wantState(t, e.settle(nodeos.SequenceUpgrade, req), nodeos.OperationSucceeded, "")
		back := nodeos.RollbackRequest{Order: nodeos.Order{OperationID: "back", Caller: "test"}}
		wantState(t, e.settle(nodeos.SequenceRollback, back), nodeos.OperationSucceeded, "")
		f := e.facts()
		wantBooted(t, f, "1.0.0", true)
		if len(f.Denied) != 0 {
			t.Errorf("denied: %v", f.Denied)
		}
	})
}

func TestRollbackOnANewMachineFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		back := nodeos.RollbackRequest{Order: nodeos.Order{OperationID: "back", Caller: "test"}}
		wantState(t, e.settle(nodeos.SequenceRollback, back), nodeos.OperationFailed, "NoPrevious")
	})
}

func TestUpgradeSurvivesPowerLossAtAnyWrite(t *testing.T) {
	for n := range 60 {
		cut := false
		synctest.Test(t, func(t *testing.T) {
			e := newEnv(t)
			left := n
			e.power = func(string) error {
				if left--; left == -1 {
					cut = true
					return sim.ErrPowerLoss
				}
				return nil
			}
			// A power loss ends the process; the env emulates it with a reboot.
			e.registry = func(reg Registry) { hangOnPowerLoss(reg) }
			image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0"})
			req := upgrade("op1", image)
			req.AutoCommit = true
			e.runThroughPowerLoss(nodeos.SequenceUpgrade, req)
			f := e.facts()
			wantBooted(t, f, "2.0.0", true)
			if f.Trial != nil || f.HighWater["os"] != "2.0.0" || f.ServicesStopped {
				t.Errorf("cut before write %d: %+v", n+1, f)
			}
		})
		if !cut {
			if n < 8 {
				t.Errorf("only %d writes", n)
			}
			return
		}
	}
	t.Error("not done after 60 writes")
}

// hangOnPowerLoss makes tasks that fail with a power loss block until their
// process ends, as on a dead machine.
func hangOnPowerLoss(reg Registry) {
	for name, setup := range reg {
		reg[name] = func(seq nodeos.Sequence, call nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
			run, shown := setup(seq, call)
			return func(ctx context.Context, log *zap.Logger, rt nodeos.Runtime) error {
				err := run(ctx, log, rt)
				if errors.Is(err, sim.ErrPowerLoss) {
					rt.Events().Publish("", nodeos.EventServiceState{Service: "power", State: "lost"})
					<-ctx.Done()
				}
				return err
			}, shown
		}
	}
}

// runThroughPowerLoss runs an order to its end and boots after each power loss.
func (e *env) runThroughPowerLoss(seq nodeos.Sequence, req nodeos.Request) {
	e.t.Helper()
	if e.boots == 0 {
		e.boot()
	}
	for range 50 {
		done := false
		lost := make(chan struct{}, 1)
		e.observe(func(p nodeos.Payload) {
			if s, ok := p.(nodeos.EventServiceState); ok && s.Service == "power" {
				lost <- struct{}{}
			}
		})
		err := e.runAgent(func(ctx context.Context, c *Controller) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if _, err := c.Run(ctx, seq, req); err != nil {
					return
				}
				st, err := c.Wait(ctx, req.Header().OperationID, func(s nodeos.OperationStatus) bool { return s.State.Done() })
				if done = err == nil; done {
					wantState(e.t, st, nodeos.OperationSucceeded, "")
				}
			}()
			select {
			case <-lost:
			case <-ended:
			}
			cancel()
			<-ended
		})
		if done {
			return
		}
		if err != nil && !nodeos.IsRebootError(err) {
			e.t.Fatal(err)
		}
		e.boot()
	}
	e.t.Fatal("not done after 50 starts")
}

func TestAgentRestartAtAnyEventResumesTheUpgrade(t *testing.T) {
	for n := 1; n < 80; n++ {
		ended := false
		synctest.Test(t, func(t *testing.T) {
			e := newEnv(t)
			image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0"})
			req := upgrade("op1", image)
			req.AutoCommit = true
			left := n
			var st nodeos.OperationStatus
			e.runUntil(func(ctx context.Context, c *Controller) bool {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				e.observe(func(nodeos.Payload) {
					if left--; left == 0 {
						ended = true
						cancel()
					}
				})
				if _, err := c.Run(ctx, nodeos.SequenceUpgrade, req); err != nil {
					return false
				}
				var err error
				st, err = c.Wait(ctx, "op1", func(s nodeos.OperationStatus) bool { return s.State.Done() })
				return err == nil
			})
			wantState(t, st, nodeos.OperationSucceeded, "")
			wantBooted(t, e.facts(), "2.0.0", true)
			if e.boots != 2 {
				t.Errorf("ended at event %d: %d boots", n, e.boots)
			}
		})
		if !ended {
			return
		}
	}
	t.Error("not done after 80 events")
}

func TestRunReportsTheLockHolderImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		hold := make(chan struct{})
		e.registry = func(reg Registry) {
			reg[nodeos.TaskPrecheckImage] = func(nodeos.Sequence, nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
				return func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime) error {
					select {
					case <-hold:
					case <-ctx.Done():
					}
					return ctx.Err()
				}, ""
			}
		}
		image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0"})
		e.runUntil(func(ctx context.Context, c *Controller) bool {
			ticket, err := c.Run(ctx, nodeos.SequenceStageUpgrade, upgrade("op1", image))
			if err != nil || ticket.OperationID != "op1" || ticket.Known {
				t.Fatalf("%+v, %v", ticket, err)
			}
			plain := nodeos.PlainRequest{Order: nodeos.Order{OperationID: "op2", Caller: "test"}}
			var locked *nodeos.LockedError
			if _, err := c.Run(ctx, nodeos.SequenceBoot, plain); !errors.As(err, &locked) || !errors.Is(err, nodeos.ErrLocked) || locked.By != "op1" {
				t.Errorf("got %v, want locked by op1", err)
			}
			if _, err := c.Run(ctx, nodeos.SequenceNoop, plain, nodeos.WithTakeover(), nodeos.WithForce()); err != nil {
				t.Errorf("takeover: %v", err)
			}
			st, err := c.Wait(ctx, "op2", func(s nodeos.OperationStatus) bool { return s.State.Done() })
			must(t, err)
			wantState(t, st, nodeos.OperationSucceeded, "")
			st, _ = c.Operation("op1")
			wantState(t, st, nodeos.OperationCanceled, "TakenOver")
			return true
		})
	})
}

func TestInvalidOrdersAreRejectedBeforeAnythingStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.platform = "container"
		image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0"})
		plain := func(id string) nodeos.PlainRequest {
			return nodeos.PlainRequest{Order: nodeos.Order{OperationID: id, Caller: "test"}}
		}
		boom := errors.New("boom")
		e.runUntil(func(ctx context.Context, c *Controller) bool {
			for name, tc := range map[string]struct {
				seq    nodeos.Sequence
				req    nodeos.Request
				opt    nodeos.ControllerOption
				reason string
				is     error
			}{
				"an upgrade in a container": {nodeos.SequenceUpgrade, upgrade("a", image), nil, "Unsupported", nil},
				"a reboot in a container":   {nodeos.SequenceReboot, plain("b"), nil, "Unsupported", nil},
				"a request of another type": {nodeos.SequenceUpgrade, plain("c"), nil, "", nodeos.ErrInvalidSequenceData},
				"no request":                {nodeos.SequenceBoot, nil, nil, "", nodeos.ErrInvalidSequenceData},
				"no operation id":           {nodeos.SequenceBoot, plain(""), nil, "", nodeos.ErrInvalidSequenceData},
				"a failing option":          {nodeos.SequenceBoot, plain("d"), func(*nodeos.ControllerOptions) error { return boom }, "", boom},
			} {
				var opts []nodeos.ControllerOption
				if tc.opt != nil {
					opts = append(opts, tc.opt)
				}
				_, err := c.Run(ctx, tc.seq, tc.req, opts...)
				if err == nil || (tc.is != nil && !errors.Is(err, tc.is)) || (tc.reason != "" && nodeos.ReasonOf(err, "") != tc.reason) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if f, err := c.Facts(ctx); err != nil || f.Last != nil || f.Operation != nil {
				t.Errorf("an operation started: %+v, %v", f, err)
			}
			return true
		})
	})
	if _, err := New(Config{}); !errors.Is(err, nodeos.ErrUndefinedRuntime) {
		t.Errorf("New without a runtime: %v", err)
	}
}

// bootWith runs the boot sequence with one phase of the given tasks.
func bootWith(t *testing.T, names []string, reg map[string]nodeos.TaskExecutionFunc, timeout time.Duration) (nodeos.OperationStatus, *env) {
	t.Helper()
	e := newEnv(t)
	var st nodeos.OperationStatus
	e.boot()
	_ = e.runAgent(func(ctx context.Context, c *Controller) {
		for name, run := range reg {
			c.cfg.Tasks[name] = func(nodeos.Sequence, nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) { return run, name }
		}
		c.cfg.Sequencer = nodeos.SequencerFunc(func(nodeos.Sequence, nodeos.Mode, nodeos.Request) ([]nodeos.Phase, error) {
			p := nodeos.Phase{Name: "p", Timeout: timeout, OnFailure: nodeos.FailurePolicy{Then: nodeos.AbortAndUndo}}
			for _, n := range names {
				p.Tasks = append(p.Tasks, nodeos.Task{Name: n})
			}
			return []nodeos.Phase{p}, nil
		})
		_, err := c.Run(ctx, nodeos.SequenceBoot, nodeos.PlainRequest{Order: nodeos.Order{OperationID: "op", Caller: "test"}})
		must(t, err)
		st, err = c.Wait(ctx, "op", func(s nodeos.OperationStatus) bool { return s.State.Done() })
		must(t, err)
	})
	return st, e
}

func TestTaskFailuresEndThePhase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime) error { <-ctx.Done(); return ctx.Err() }
		fails := func(context.Context, *zap.Logger, nodeos.Runtime) error { return errors.New("it broke") }
		panics := func(context.Context, *zap.Logger, nodeos.Runtime) error { panic("a bug") }
		for name, tc := range map[string]struct {
			names []string
			state nodeos.OperationState
			want  string
		}{
			"a failure cancels its siblings":              {[]string{"waits", "fails"}, nodeos.OperationFailed, "phase p failed: task fails: it broke"},
			"a panic is an error":                         {[]string{"panics"}, nodeos.OperationFailed, "panic: a bug"},
			"a task that exceeds the timeout is canceled": {[]string{"waits"}, nodeos.OperationFailed, "phase p took longer than 1m0s"},
			"a nil task is skipped":                       {[]string{"nothing"}, nodeos.OperationSucceeded, ""},
			"a phase without tasks is done":               {nil, nodeos.OperationSucceeded, ""},
		} {
			st, _ := bootWith(t, tc.names, map[string]nodeos.TaskExecutionFunc{"waits": waits, "fails": fails, "panics": panics, "nothing": nil}, time.Minute)
			if st.State != tc.state || !strings.Contains(st.Message, tc.want) {
				t.Errorf("%s: %s %q", name, st.State, st.Message)
			}
		}
	})
}

func TestTasksRunConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := make(chan struct{}), make(chan struct{})
		meet := func(mine, other chan struct{}) nodeos.TaskExecutionFunc {
			return func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime) error {
				close(mine)
				select {
				case <-other:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		st, e := bootWith(t, []string{"a", "b"}, map[string]nodeos.TaskExecutionFunc{"a": meet(a, b), "b": meet(b, a)}, time.Minute)
		wantState(t, st, nodeos.OperationSucceeded, "")
		var starts, stops int
		for _, p := range e.seen {
			if e, ok := p.(nodeos.EventTask); ok {
				if e.Action == nodeos.ActionStart {
					starts++
				} else {
					stops++
				}
			}
		}
		if starts != 2 || stops != 2 {
			t.Errorf("%d starts and %d stops of two tasks", starts, stops)
		}
	})
}

func TestResetIsValidForOneMachineAndBootOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		f := e.facts()
		good := nodeos.ResetRequest{
			HostID: "host-1", InstallationID: f.InstallationID, BootID: f.BootID, NotAfter: time.Now().Add(time.Hour), Reboot: true,
		}
		for name, tc := range map[string]struct {
			change func(*nodeos.ResetRequest)
			reason string
		}{
			"another host":         {func(q *nodeos.ResetRequest) { q.HostID = "host-2" }, "WrongTarget"},
			"another installation": {func(q *nodeos.ResetRequest) { q.InstallationID = "" }, "WrongTarget"},
			"another boot":         {func(q *nodeos.ResetRequest) { q.BootID = "earlier" }, "WrongTarget"},
			"too late":             {func(q *nodeos.ResetRequest) { q.NotAfter = time.Now() }, "Expired"},
			"an unknown target":    {func(q *nodeos.ResetRequest) { q.Targets = []string{"everything"} }, "UnknownTarget"},
		} {
			req := good
			req.Order = nodeos.Order{OperationID: name, Caller: "test"}
			tc.change(&req)
			wantState(t, e.settle(nodeos.SequenceReset, req), nodeos.OperationFailed, tc.reason)
		}
		good.Order = nodeos.Order{OperationID: "reset", Caller: "test"}
		good.Targets = []string{"inactive-slot"}
		wantState(t, e.settle(nodeos.SequenceReset, good), nodeos.OperationSucceeded, "")
		if e.boots != 2 {
			t.Errorf("%d boots", e.boots)
		}
	})
}

func TestBootLoadsThePlatformConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		st := e.settle(nodeos.SequenceBoot, nodeos.PlainRequest{Order: nodeos.Order{OperationID: "boot", Caller: "test"}})
		wantState(t, st, nodeos.OperationSucceeded, "")
	})
}

func TestBootSequenceRunsOncePerBootAndNotDuringAnOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		booted := 0
		e.observe(func(p nodeos.Payload) {
			if e, ok := p.(nodeos.EventSequenceStart); ok && e.Sequence == nodeos.SequenceBoot {
				booted++
			}
		})
		once := func(want int) {
			t.Helper()
			e.runUntil(func(ctx context.Context, c *Controller) bool {
				must(t, c.Boot(ctx))
				synctest.Wait()
				return true
			})
			if booted != want {
				t.Errorf("the boot sequence ran %d times, want %d", booted, want)
			}
		}
		once(1)
		if f := e.facts(); f.Last != nil || f.Operation != nil {
			t.Errorf("the boot sequence is reported as the last operation: %+v", f.Last)
		}
		once(1) // another start of the agent in the same boot
		e.boot()
		once(2)
		image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0"})
		wantState(t, e.settle(nodeos.SequenceUpgrade, upgrade("op1", image)), nodeos.OperationOnTrial, "")
		once(2)
	})
}

func TestMachineReportsTheInstalledAndTheStagedOS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		image, _ := e.image(sim.Document{Product: "os", Version: "2.0.0"})
		wantState(t, e.settle(nodeos.SequenceStageUpgrade, upgrade("op1", image)), nodeos.OperationSucceeded, "")
		e.runUntil(func(_ context.Context, c *Controller) bool {
			<-c.started
			m := c.Runtime().State().Machine()
			if !m.Installed() || !m.IsInstallStaged() || m.StagedInstallImageRef() != image.Ref.String() || len(m.StagedInstallOptions()) == 0 {
				t.Errorf("staged is %q", m.StagedInstallImageRef())
			}
			if _, ok := m.Disk("B"); !ok {
				t.Error("slot B has no device")
			}
			return true
		})
	})
}
