// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

// The defaults of kinds.md, for objects that no API server has defaulted.
const (
	defaultDrain    = 15 * time.Minute
	defaultGates    = 15 * time.Minute
	defaultBoot     = 10 * time.Minute
	defaultCommit   = 30 * time.Minute
	defaultParallel = 10
)

// DrainMode says whether pods are asked to leave.
type DrainMode string

// The drain modes.
const (
	// DrainAuto evicts, but in a cluster of one node pods stay.
	DrainAuto DrainMode = ""
	// DrainEvict cordons the node and evicts its pods.
	DrainEvict DrainMode = "Evict"
	// DrainNone leaves the pods and the node schedulable.
	DrainNone DrainMode = "None"
)

// OnDeadline says what follows when a drain isn't done in time.
type OnDeadline string

// What follows.
const (
	// DeadlineAbort uncordons and tries again later.
	DeadlineAbort OnDeadline = "Abort"
	// DeadlineQuarantine leaves the node cordoned for a person.
	DeadlineQuarantine OnDeadline = "Quarantine"
	// DeadlineForce deletes what is left.
	DeadlineForce OnDeadline = "Force"
)

// Pool is a NodeOS as the plan uses it: parsed, with its defaults.
type Pool struct {
	UID, Name  string
	Generation int64
	// Target is what every host should run, Ref where it is, Product what it
	// must turn out to be.
	Target  ledger.Image
	Ref     nodeos.ImageRef
	Product string
	// StageOnly stages everywhere and boots nothing.
	StageOnly bool

	MaxUnavailable     intstr.IntOrString
	Canary             []CanaryStep
	OrderBy            []string
	MaxParallelStaging int
	FailureThreshold   int
	MaxQuarantined     int
	// ControlPlane allows one at a time in the cluster and asks for a quorum.
	ControlPlane bool

	Drain          DrainMode
	DrainTimeout   time.Duration
	DrainDeadline  OnDeadline
	Windows        []Window
	GateTimeout    time.Duration
	Soak           time.Duration
	HaltOnFailure  bool
	BootDeadline   time.Duration
	CommitDeadline time.Duration

	// Suspended starts nothing new; Paused (who, when, why) also takes back
	// what hasn't been activated; Deleting likewise.
	Suspended bool
	Paused    string
	Deleting  bool
	// Resume is the value of the resume annotation.
	Resume string
	// Round tells the tries of a target apart that the pool came back to; Plan
	// takes it from the ledger.
	Round int64
	// Unverified says why the OS image isn't trusted; empty: it was verified.
	Unverified, UnverifiedReason string
}

// CanaryStep is a number of hosts that must be updated and have soaked before
// more are claimed, counted from the start.
type CanaryStep struct {
	Hosts intstr.IntOrString
	Soak  time.Duration
}

// SpecError says what in a NodeOS can't be rolled out.
type SpecError struct{ Field, Problem string }

// Error implements error.
func (e *SpecError) Error() string { return fmt.Sprintf("spec.%s: %s", e.Field, e.Problem) }

// Reason is the condition reason.
func (e *SpecError) Reason() string { return "InvalidSpec" }

// PoolOf reads a NodeOS. The caller adds what isn't in the object: whether the
// image is verified, and its product. Errors are of type *SpecError.
func PoolOf(n *v1alpha1.NodeOS) (Pool, error) {
	ref, err := nodeos.ParseImageRef(n.Spec.OS.Image)
	if err != nil {
		return Pool{}, &SpecError{Field: "os.image", Problem: err.Error()}
	}
	s := n.Spec
	p := Pool{
		UID: string(n.UID), Name: n.Name, Generation: n.Generation,
		Target: ledger.Image{Version: s.OS.Version, Digest: ref.Digest}, Ref: ref,
		StageOnly:          s.Sequence == "stageUpgrade",
		MaxUnavailable:     intstr.FromInt32(1),
		OrderBy:            s.Strategy.OrderBy,
		MaxParallelStaging: orDefault(int(s.Strategy.MaxParallelStaging), defaultParallel),
		FailureThreshold:   orDefault(int(s.Strategy.FailureThreshold), 1),
		MaxQuarantined:     int(s.Strategy.MaxQuarantined),
		ControlPlane:       s.ControlPlane != nil,
		Drain:              DrainMode(s.Drain.Mode),
		DrainTimeout:       orDefault(s.Drain.Timeout.Duration, defaultDrain),
		DrainDeadline:      orDefault(OnDeadline(s.Drain.OnDeadline), DeadlineAbort),
		GateTimeout:        orDefault(s.Gates.Timeout.Duration, defaultGates),
		Soak:               s.Gates.Soak.Duration,
		HaltOnFailure:      s.OnFailure == "Halt",
		BootDeadline:       orDefault(s.BootDeadline.Duration, defaultBoot),
		CommitDeadline:     orDefault(s.CommitDeadline.Duration, defaultCommit),
		Suspended:          s.Suspend,
		Paused:             n.Annotations[v1alpha1.AnnotationPaused],
		Deleting:           !n.DeletionTimestamp.IsZero(),
		Resume:             n.Annotations[v1alpha1.AnnotationResume],
	}
	if _, ok := n.Annotations[v1alpha1.AnnotationPaused]; ok && p.Paused == "" {
		p.Paused = "no reason was given"
	}
	if s.Strategy.MaxUnavailable != nil {
		p.MaxUnavailable = *s.Strategy.MaxUnavailable
	}
	for i, c := range s.Strategy.Canary {
		if _, err := scaled(c.Hosts, 100, roundUp); err != nil {
			return Pool{}, &SpecError{Field: fmt.Sprintf("strategy.canary[%d].hosts", i), Problem: err.Error()}
		}
		p.Canary = append(p.Canary, CanaryStep{Hosts: c.Hosts, Soak: c.Soak.Duration})
	}
	for i, w := range s.Windows {
		parsed, err := ParseWindow(w.Cron, w.Duration.Duration, w.TimeZone)
		if err != nil {
			return Pool{}, &SpecError{Field: fmt.Sprintf("windows[%d]", i), Problem: err.Error()}
		}
		p.Windows = append(p.Windows, parsed)
	}
	return p, p.check(s.Sequence)
}

func (p Pool) check(sequence string) error {
	switch {
	case sequence != "" && sequence != "upgrade" && sequence != "stageUpgrade":
		return &SpecError{Field: "sequence", Problem: fmt.Sprintf(
			"%q isn't rolled out: a plain reboot needs a certificate of an operator; use upgrade or stageUpgrade", sequence)}
	case p.CommitDeadline <= p.GateTimeout+p.Soak:
		return &SpecError{Field: "commitDeadline", Problem: fmt.Sprintf(
			"%s, must be longer than gates.timeout + gates.soak = %s, else hosts go back while they are verified",
			p.CommitDeadline, p.GateTimeout+p.Soak)}
	}
	if _, err := scaled(p.MaxUnavailable, 100, roundDown); err != nil {
		return &SpecError{Field: "strategy.maxUnavailable", Problem: err.Error()}
	}
	return nil
}

// Attempt identifies one try of the pool's target: the same for all its hosts;
// another one after each rerun of the host, each change of what goes into an
// order, and each time that the pool comes back to the target. Changes of the pool that only say when and how many don't make
// another try.
func (p Pool) Attempt(nonce string) string {
	action := "upgrade"
	if p.StageOnly {
		action = "stageUpgrade"
	}
	h := sha256.Sum256([]byte(strings.Join([]string{
		p.UID, action, p.Ref.String(), p.Target.Version, p.Product,
		p.CommitDeadline.String(), strconv.FormatBool(p.HaltOnFailure), strconv.FormatInt(p.Round, 10), nonce,
	}, "\x00")))
	return attemptPrefix + hex.EncodeToString(h[:8])
}

// attemptPrefix starts the attempts of rollouts; others' don't look like it.
const attemptPrefix = "lockstep-"

// Limit is how many hosts of a pool of total may be unavailable at once.
func (p Pool) Limit(total int) int {
	n, err := scaled(p.MaxUnavailable, total, roundDown)
	if err != nil {
		return 0
	}
	if p.ControlPlane {
		return min(n, 1)
	}
	return n
}

type rounding bool

const (
	roundDown rounding = false
	roundUp   rounding = true
)

// scaled resolves a number or a percentage of total. A percentage above zero
// is at least one host; zero is zero.
func scaled(v intstr.IntOrString, total int, r rounding) (int, error) {
	if v.Type == intstr.Int {
		if v.IntVal < 0 {
			return 0, fmt.Errorf("%d is negative", v.IntVal)
		}
		return int(v.IntVal), nil
	}
	digits, ok := strings.CutSuffix(v.StrVal, "%")
	percent, err := strconv.Atoi(digits)
	if !ok || err != nil || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("%q is neither a number nor a percentage from 0%% to 100%%", v.StrVal)
	}
	n := percent * total / 100
	if r == roundUp {
		n = (percent*total + 99) / 100
	}
	if percent > 0 {
		n = max(n, 1)
	}
	return n, nil
}

func orDefault[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}
