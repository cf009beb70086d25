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

// wantState checks an operation's end.
func wantState(t *testing.T, st nodeos.OperationStatus, state nodeos.OperationState, reason string) {
	t.Helper()
	if st.State != state || st.Reason != reason {
		t.Fatalf("operation %s is %s %s: %s; want %s %s", st.ID, st.State, st.Reason, st.Message, state, reason)
	}
}

func wantBooted(t *testing.T, f nodeos.HostFacts, version string, confirmed bool) {
	t.Helper()
	if f.Booted.Version != version || f.Booted.Confirmed != confirmed {
		t.Fatalf("%s runs, confirmed %v; want %s, %v", f.Booted.Version, f.Booted.Confirmed, version, confirmed)
	}
}

func TestAnUpgradeBootsTheNewSystemAndKeepsItWhenItIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0", KubeletVersion: "v1.37.0"})
		wantState(t, r.settle(nodeos.SequenceUpgrade, upgrade("op1", image)), nodeos.OperationOnTrial, "")
		f := r.facts()
		wantBooted(t, f, "2.0.0", false)
		if f.Trial == nil || f.Trial.BootID != f.BootID || f.Operation == nil || f.HighWater["os"] != "1.0.0" {
			t.Errorf("the facts on trial are %+v", f)
		}
		wantState(t, r.decide("op1", nodeos.VerdictCommit), nodeos.OperationSucceeded, "")
		f = r.facts()
		wantBooted(t, f, "2.0.0", true)
		if f.Trial != nil || f.HighWater["os"] != "2.0.0" || f.ServicesStopped || f.Previous == nil || f.Previous.Image.Version != "1.0.0" {
			t.Errorf("the facts after the commit are %+v", f)
		}
		if r.boots != 2 || r.shelf.fetched != 1 {
			t.Errorf("%d boots and %d fetches, want 2 and 1", r.boots, r.shelf.fetched)
		}
		if f.NodeName != "node-1" || f.HostID != "host-1" || f.Backend != "sim" || f.Last == nil || f.Last.ID != "op1" {
			t.Errorf("the facts are %+v", f)
		}
	})
}

func TestAHostThatNobodyCommitsGoesBackAndDeniesTheDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0"})
		st := r.follow(nodeos.SequenceUpgrade, upgrade("op1", image), func(s nodeos.OperationStatus) bool { return s.State.Done() })
		wantState(t, st, nodeos.OperationRolledBack, "DeadlineExceeded")
		f := r.facts()
		wantBooted(t, f, "1.0.0", true)
		if len(f.Denied) != 1 || f.Denied[0].Digest != image.Ref.Digest || f.HighWater["os"] != "1.0.0" {
			t.Errorf("the facts are %+v", f)
		}
		wantState(t, r.settle(nodeos.SequenceUpgrade, upgrade("op2", image)), nodeos.OperationFailed, "DeniedDigest")
	})
}

func TestBadSystemsEndOnThePreviousOne(t *testing.T) {
	no := false
	for name, tc := range map[string]struct {
		doc    sim.Document
		reason string
	}{
		"an unhealthy one": {sim.Document{Product: "os", Version: "2.0.0", Healthy: &no}, "TaskFailed"},
		"one that hangs":   {sim.Document{Product: "os", Version: "2.0.0", Faults: sim.Faults{HangAtBoot: true}}, "FellBack"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				image, _ := r.image(tc.doc)
				st := r.follow(nodeos.SequenceUpgrade, upgrade("op1", image), func(s nodeos.OperationStatus) bool { return s.State.Done() })
				wantState(t, st, nodeos.OperationRolledBack, tc.reason)
				f := r.facts()
				wantBooted(t, f, "1.0.0", true)
				if len(f.Denied) != 1 || f.ServicesStopped {
					t.Errorf("the facts are %+v", f)
				}
			})
		})
	}
}

func TestARefusedImageTouchesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(r *rig, req *nodeos.UpgradeRequest)
		reason string
	}{
		"unsigned":        {func(r *rig, req *nodeos.UpgradeRequest) { r.shelf.signed[req.Image.Digest] = false }, "Unsigned"},
		"another version": {func(_ *rig, req *nodeos.UpgradeRequest) { req.Version = "2.0.1" }, "NameMismatch"},
		"another product": {func(_ *rig, req *nodeos.UpgradeRequest) { req.Product = "other" }, "NameMismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.power = func(point string) error { t.Errorf("%s although it's refused", point); return nil }
				image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0"})
				req := upgrade("op1", image)
				tc.change(r, &req)
				wantState(t, r.settle(nodeos.SequenceUpgrade, req), nodeos.OperationFailed, tc.reason)
				if r.boots != 1 || r.shelf.fetched != 0 {
					t.Errorf("%d boots, %d fetches", r.boots, r.shelf.fetched)
				}
			})
		})
	}
}

func TestTheFloorLetsOnlyTheSystemBeforeTheNewestBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		auto := func(id, version string) nodeos.OperationStatus {
			t.Helper()
			image, _ := r.image(sim.Document{Product: "os", Version: version})
			req := upgrade(id, image)
			req.AutoCommit = true
			return r.settle(nodeos.SequenceUpgrade, req)
		}
		wantState(t, auto("to2", "2.0.0"), nodeos.OperationSucceeded, "")
		wantState(t, auto("to3", "3.0.0"), nodeos.OperationSucceeded, "")
		wantState(t, auto("to1", "1.0.0"), nodeos.OperationFailed, "BelowFloor")
		wantState(t, auto("back", "2.0.0"), nodeos.OperationSucceeded, "")
		if f := r.facts(); f.HighWater["os"] != "3.0.0" {
			t.Errorf("the high-water mark is %s", f.HighWater["os"])
		}
		wantState(t, auto("again", "2.5.0"), nodeos.OperationFailed, "BelowFloor")
	})
}

func TestARollbackIsAnOperationAndDeniesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0"})
		req := upgrade("op1", image)
		req.AutoCommit = true
		wantState(t, r.settle(nodeos.SequenceUpgrade, req), nodeos.OperationSucceeded, "")
		back := nodeos.RollbackRequest{Order: nodeos.Order{OperationID: "back", Caller: "test"}}
		wantState(t, r.settle(nodeos.SequenceRollback, back), nodeos.OperationSucceeded, "")
		f := r.facts()
		wantBooted(t, f, "1.0.0", true)
		if len(f.Denied) != 0 {
			t.Errorf("denied: %v", f.Denied)
		}
	})
}

func TestThereIsNothingToRollBackToOnANewMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		back := nodeos.RollbackRequest{Order: nodeos.Order{OperationID: "back", Caller: "test"}}
		wantState(t, r.settle(nodeos.SequenceRollback, back), nodeos.OperationFailed, "NoPrevious")
	})
}

func TestPowerLossAtAnyWriteOfAnUpgradeStillEndsWell(t *testing.T) {
	for n := range 60 {
		cut := false
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			left := n
			r.power = func(string) error {
				if left--; left == -1 {
					cut = true
					return sim.ErrPowerLoss
				}
				return nil
			}
			// A power loss ends the process: here a panic in the task that
			// lives through it would, so the rig goes down by a reboot.
			r.registry = func(reg Registry) { dieWithThePower(reg) }
			image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0"})
			req := upgrade("op1", image)
			req.AutoCommit = true
			r.untilDead(nodeos.SequenceUpgrade, req)
			f := r.facts()
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
	t.Error("60 writes and no end")
}

// dieWithThePower makes tasks that meet a power loss hang until their process
// ends, as a dead machine does.
func dieWithThePower(reg Registry) {
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

// untilDead gives an order and follows it over power losses.
func (r *rig) untilDead(seq nodeos.Sequence, req nodeos.Request) {
	r.t.Helper()
	if r.boots == 0 {
		r.boot()
	}
	for range 50 {
		done := false
		lost := make(chan struct{}, 1)
		r.listen(func(p nodeos.Payload) {
			if s, ok := p.(nodeos.EventServiceState); ok && s.Service == "power" {
				lost <- struct{}{}
			}
		})
		err := r.live(func(ctx context.Context, c *Controller) {
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
					wantState(r.t, st, nodeos.OperationSucceeded, "")
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
			r.t.Fatal(err)
		}
		r.boot()
	}
	r.t.Fatal("50 starts and no end")
}

func TestAnAgentThatIsEndedAtAnyEventGoesOnWhereItWas(t *testing.T) {
	for n := 1; n < 80; n++ {
		ended := false
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0"})
			req := upgrade("op1", image)
			req.AutoCommit = true
			left := n
			var st nodeos.OperationStatus
			r.until(func(ctx context.Context, c *Controller) bool {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				r.listen(func(nodeos.Payload) {
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
			wantBooted(t, r.facts(), "2.0.0", true)
			if r.boots != 2 {
				t.Errorf("ended at event %d: %d boots", n, r.boots)
			}
		})
		if !ended {
			return
		}
	}
	t.Error("80 events and no end")
}

func TestRunAnswersAtOnceWhoHasTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		hold := make(chan struct{})
		r.registry = func(reg Registry) {
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
		image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0"})
		r.until(func(ctx context.Context, c *Controller) bool {
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

func TestOrdersThatDoNotFitAreRefusedBeforeAnythingStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.platform = "container"
		image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0"})
		plain := func(id string) nodeos.PlainRequest {
			return nodeos.PlainRequest{Order: nodeos.Order{OperationID: id, Caller: "test"}}
		}
		boom := errors.New("boom")
		r.until(func(ctx context.Context, c *Controller) bool {
			for name, tc := range map[string]struct {
				seq    nodeos.Sequence
				req    nodeos.Request
				opt    nodeos.ControllerOption
				reason string
				is     error
			}{
				"an upgrade in a container": {nodeos.SequenceUpgrade, upgrade("a", image), nil, "Unsupported", nil},
				"a reboot in a container":   {nodeos.SequenceReboot, plain("b"), nil, "Unsupported", nil},
				"a request of another kind": {nodeos.SequenceUpgrade, plain("c"), nil, "", nodeos.ErrInvalidSequenceData},
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
				t.Errorf("something started: %+v, %v", f, err)
			}
			return true
		})
	})
	if _, err := New(Config{}); !errors.Is(err, nodeos.ErrUndefinedRuntime) {
		t.Errorf("a controller without a runtime: %v", err)
	}
}

// oneTask replaces the tasks of the boot sequence's last phase.
func bootWith(t *testing.T, names []string, reg map[string]nodeos.TaskExecutionFunc, timeout time.Duration) (nodeos.OperationStatus, *rig) {
	t.Helper()
	r := newRig(t)
	var st nodeos.OperationStatus
	r.boot()
	_ = r.live(func(ctx context.Context, c *Controller) {
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
	return st, r
}

func TestTasksOfAPhaseRunTogetherAndFailTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := func(ctx context.Context, _ *zap.Logger, _ nodeos.Runtime) error { <-ctx.Done(); return ctx.Err() }
		fails := func(context.Context, *zap.Logger, nodeos.Runtime) error { return errors.New("it broke") }
		panics := func(context.Context, *zap.Logger, nodeos.Runtime) error { panic("a bug") }
		for name, tc := range map[string]struct {
			names []string
			state nodeos.OperationState
			want  string
		}{
			"a failure cancels its siblings":      {[]string{"waits", "fails"}, nodeos.OperationFailed, "phase p failed: task fails: it broke"},
			"a panic is an error":                 {[]string{"panics"}, nodeos.OperationFailed, "panic: a bug"},
			"a task that takes too long is ended": {[]string{"waits"}, nodeos.OperationFailed, "phase p took longer than 1m0s"},
			"a nil task is skipped":               {[]string{"nothing"}, nodeos.OperationSucceeded, ""},
			"no tasks at all are done":            {nil, nodeos.OperationSucceeded, ""},
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
		st, r := bootWith(t, []string{"a", "b"}, map[string]nodeos.TaskExecutionFunc{"a": meet(a, b), "b": meet(b, a)}, time.Minute)
		wantState(t, st, nodeos.OperationSucceeded, "")
		var starts, stops int
		for _, p := range r.seen {
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

func TestAResetServesOneMachineOneBootAndOneTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		f := r.facts()
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
			wantState(t, r.settle(nodeos.SequenceReset, req), nodeos.OperationFailed, tc.reason)
		}
		good.Order = nodeos.Order{OperationID: "reset", Caller: "test"}
		good.Targets = []string{"inactive-slot"}
		wantState(t, r.settle(nodeos.SequenceReset, good), nodeos.OperationSucceeded, "")
		if r.boots != 2 {
			t.Errorf("%d boots", r.boots)
		}
	})
}

func TestBootLoadsTheConfigurationOfThePlatform(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		st := r.settle(nodeos.SequenceBoot, nodeos.PlainRequest{Order: nodeos.Order{OperationID: "boot", Caller: "test"}})
		wantState(t, st, nodeos.OperationSucceeded, "")
	})
}

func TestTheBootSequenceRunsOnceInABootAndNotBesideAnOpenOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		booted := 0
		r.listen(func(p nodeos.Payload) {
			if e, ok := p.(nodeos.EventSequenceStart); ok && e.Sequence == nodeos.SequenceBoot {
				booted++
			}
		})
		once := func(want int) {
			t.Helper()
			r.until(func(ctx context.Context, c *Controller) bool {
				must(t, c.Boot(ctx))
				synctest.Wait()
				return true
			})
			if booted != want {
				t.Errorf("the boot sequence ran %d times, want %d", booted, want)
			}
		}
		once(1)
		if f := r.facts(); f.Last != nil || f.Operation != nil {
			t.Errorf("what a boot does by itself shows as %+v", f.Last)
		}
		once(1) // another start of the agent in the same boot
		r.boot()
		once(2)
		image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0"})
		wantState(t, r.settle(nodeos.SequenceUpgrade, upgrade("op1", image)), nodeos.OperationOnTrial, "")
		once(2)
	})
}

func TestAMachineSaysWhatIsInstalledAndStaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		image, _ := r.image(sim.Document{Product: "os", Version: "2.0.0"})
		wantState(t, r.settle(nodeos.SequenceStageUpgrade, upgrade("op1", image)), nodeos.OperationSucceeded, "")
		r.until(func(_ context.Context, c *Controller) bool {
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
