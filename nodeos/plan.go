// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import "time"

// Plan returns the phases of a sequence for a mode and a request; it's pure. A
// mode that lacks a needed capability gives an *UnsupportedError, a request
// that doesn't fit gives ErrInvalidSequenceData.
func Plan(seq Sequence, mode Mode, request Request) ([]Phase, error) {
	if err := CheckRequest(seq, request); err != nil {
		return nil, err
	}
	needs := seq.Needs()
	if r, ok := request.(ResetRequest); ok && !r.GetReboot() {
		needs = Shutdown
	}
	if !mode.Supports(needs) {
		return nil, &UnsupportedError{Sequence: seq, Mode: mode, Missing: missing(mode, needs)}
	}
	return runbook(seq, request), nil
}

// missing returns the flags of needs that the mode lacks.
func missing(mode Mode, needs ModeCapability) ModeCapability {
	var out ModeCapability
	for bit := Reboot; bit <= Upgrade; bit <<= 1 {
		if needs&bit != 0 && !mode.Supports(bit) {
			out |= bit
		}
	}
	return out
}

// runbook returns the phases of a sequence; the request is already checked.
func runbook(seq Sequence, request Request) []Phase {
	switch seq {
	case SequenceInitialize:
		return initializePhases()
	case SequenceBoot, SequenceBootstrap:
		return bootPhases()
	case SequenceShutdown:
		return shutdownPhases()
	case SequenceReboot:
		return rebootPhases()
	case SequenceRollback:
		return RollbackPhases()
	default:
	}
	switch r := request.(type) {
	case UpgradeRequest:
		return imagePhases(seq, r)
	case ResetRequest:
		return resetPhases(r)
	default: // noop
		return nil
	}
}

func imagePhases(seq Sequence, r UpgradeRequest) []Phase {
	switch seq {
	case SequenceInstall:
		return installPhases()
	case SequenceStageUpgrade:
		return stagePhases()
	default:
		return upgradePhases(r)
	}
}

func initializePhases() []Phase {
	return phases(
		phase("config", time.Minute, tasks(TaskLoadConfig), pauses()))
}

func bootPhases() []Phase {
	return phases(
		phase("config", time.Minute, tasks(TaskLoadConfig), pauses()),
		phase("services", 10*time.Minute, tasks(TaskStartServices), retries(3), pauses()))
}

func stagePhases() []Phase {
	return phases(
		phase("precheck", 5*time.Minute, tasks(TaskPrecheckImage)),
		phase("stage", time.Hour, tasks(TaskStageImage), retries(3)))
}

func installPhases() []Phase {
	return phases(
		phase("precheck", 5*time.Minute, tasks(TaskPrecheckImage)),
		phase("stage", time.Hour, tasks(TaskStageImage), retries(3)),
		phase("switch", time.Minute, tasks(TaskSetNextBoot), undo(TaskClearNextBoot), effect(EffectArm)),
		phase("reboot", 5*time.Minute, restart(RebootRestart), ends(EndBoot)),
		phase("verify", 10*time.Minute, tasks(TaskStartServices, TaskVerifyBooted), retries(3)),
		phase("commit", time.Minute, tasks(TaskCommit), retries(3), effect(EffectCommit)))
}

func upgradePhases(r UpgradeRequest) []Phase {
	return phases(
		phase("precheck", 5*time.Minute, tasks(TaskPrecheckImage)),
		phase("stage", time.Hour, tasks(TaskStageImage), retries(3)),
		phase("stop-services", 5*time.Minute, tasks(TaskStopServices), undo(TaskStartServices)),
		phase("switch", time.Minute, tasks(TaskSetNextBoot), undo(TaskClearNextBoot), effect(EffectArm)),
		phase("reboot", 5*time.Minute, restart(RebootRestart), ends(EndBoot)),
		phase("services", 10*time.Minute, tasks(TaskStartServices), retries(3)),
		when(r.AutoCommit, phase("verify", 10*time.Minute, tasks(TaskVerifyBooted), retries(3))),
		when(!r.AutoCommit, phase("verify", 10*time.Minute, tasks(TaskVerifyBooted), retries(3), ends(EndDecision))),
		phase("commit", time.Minute, tasks(TaskCommit), retries(3), effect(EffectCommit)))
}

// RollbackPhases returns the phases of the rollback sequence, which also roll
// back an upgrade whose OS on trial isn't committed.
func RollbackPhases() []Phase {
	return phases(
		phase("precheck", time.Minute, tasks(TaskPrecheckRollback)),
		phase("stop-services", 5*time.Minute, tasks(TaskStopServices), undo(TaskStartServices), bestEffort()),
		phase("switch-back", time.Minute, tasks(TaskRestore), retries(5)),
		phase("reboot", 5*time.Minute, restart(RebootRestart), ends(EndBoot)),
		phase("services", 10*time.Minute, tasks(TaskStartServices), retries(3), bestEffort()),
		phase("verify", 10*time.Minute, tasks(TaskVerifyRestored), retries(3), pauses(), effect(EffectRestore)))
}

// CommitPhases returns the phases that verify and commit an OS on trial whose
// operation no longer exists.
func CommitPhases() []Phase {
	return phases(
		phase("services", 10*time.Minute, tasks(TaskStartServices), retries(3)),
		phase("verify", 10*time.Minute, tasks(TaskVerifyBooted), retries(3)),
		phase("commit", time.Minute, tasks(TaskCommit), retries(3), effect(EffectCommit)))
}

// DisarmPhases returns the phases that end a trial whose operation no longer
// exists and whose OS never booted.
func DisarmPhases() []Phase {
	return phases(
		phase("disarm", time.Minute, tasks(TaskClearNextBoot), retries(3), pauses(), effect(EffectRestore)))
}

func rebootPhases() []Phase {
	return phases(
		phase("stop-services", 5*time.Minute, tasks(TaskStopServices), undo(TaskStartServices)),
		phase("reboot", 5*time.Minute, restart(RebootRestart), ends(EndBoot)),
		phase("services", 10*time.Minute, tasks(TaskStartServices), retries(3), pauses()))
}

func shutdownPhases() []Phase {
	return phases(
		phase("stop-services", 5*time.Minute, tasks(TaskStopServices), undo(TaskStartServices), bestEffort()),
		phase("power-off", 5*time.Minute, restart(RebootPowerOff), ends(EndBoot)),
		phase("services", 10*time.Minute, tasks(TaskStartServices), retries(3), pauses()))
}

func resetPhases(r ResetOptions) []Phase {
	down := RebootPowerOff
	if r.GetReboot() {
		down = RebootRestart
	}
	return phases(
		phase("precheck", time.Minute, tasks(TaskPrecheckReset)),
		when(r.GetGraceful(), phase("stop-services", 5*time.Minute, tasks(TaskStopServices), bestEffort())),
		phase("wipe", time.Hour, tasks(TaskWipe), retries(1), fatal()),
		phase("restart", 5*time.Minute, restart(down), ends(EndBoot)))
}

// phases returns the phases that aren't nil.
func phases(all ...*Phase) []Phase {
	out := make([]Phase, 0, len(all))
	for _, p := range all {
		if p != nil {
			out = append(out, *p)
		}
	}
	return out
}

// when returns p if yes, else nil.
func when(yes bool, p *Phase) *Phase {
	if yes {
		return p
	}
	return nil
}

// phase returns a phase that aborts and undoes on failure unless an option
// sets another policy.
func phase(name string, timeout time.Duration, opts ...func(*Phase)) *Phase {
	p := &Phase{Name: name, Timeout: timeout, OnFailure: FailurePolicy{Then: AbortAndUndo}}
	for _, o := range opts {
		o(p)
	}
	return p
}

func tasks(names ...string) func(*Phase) {
	return func(p *Phase) { p.Tasks = append(p.Tasks, named(names)...) }
}

func undo(names ...string) func(*Phase) {
	return func(p *Phase) { p.Undo = append(p.Undo, named(names)...) }
}

func named(names []string) []Task {
	out := make([]Task, len(names))
	for i, n := range names {
		out[i] = Task{Name: n}
	}
	return out
}

func restart(cmd RebootCommand) func(*Phase) {
	return func(p *Phase) {
		p.Tasks = append(p.Tasks, Task{Name: TaskRestart, Params: map[string]string{ParamCommand: cmd.String()}})
	}
}

func retries(n int) func(*Phase) {
	return func(p *Phase) { p.OnFailure.Retries, p.OnFailure.Backoff = n, 2*time.Second }
}

func pauses() func(*Phase)     { return func(p *Phase) { p.OnFailure.Then = Pause } }
func bestEffort() func(*Phase) { return func(p *Phase) { p.OnFailure.Then = BestEffort } }
func fatal() func(*Phase)      { return func(p *Phase) { p.OnFailure.Then = Fatal } }

func ends(e PhaseEnd) func(*Phase)      { return func(p *Phase) { p.Ends = e } }
func effect(e PhaseEffect) func(*Phase) { return func(p *Phase) { p.Effect = e } }
