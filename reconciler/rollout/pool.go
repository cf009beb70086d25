// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
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

// The defaults of the CRD, for objects without API server defaulting.
const (
	defaultDrain    = 15 * time.Minute
	defaultGates    = 15 * time.Minute
	defaultBoot     = 10 * time.Minute
	defaultCommit   = 30 * time.Minute
	defaultParallel = 10
)

// DrainMode is how a node is drained before activation.
type DrainMode string

// The drain modes.
const (
	// DrainAuto is DrainNone in a single-node cluster, else DrainEvict.
	DrainAuto DrainMode = ""
	// DrainEvict cordons the node and evicts its pods.
	DrainEvict DrainMode = "Evict"
	// DrainNone neither cordons the node nor evicts its pods.
	DrainNone DrainMode = "None"
)

// OnDeadline is the action when a drain exceeds its timeout.
type OnDeadline string

// The actions.
const (
	// DeadlineAbort uncordons the node and retries later.
	DeadlineAbort OnDeadline = "Abort"
	// DeadlineQuarantine leaves the node cordoned until an operator acts.
	DeadlineQuarantine OnDeadline = "Quarantine"
	// DeadlineForce deletes the remaining pods.
	DeadlineForce OnDeadline = "Force"
)

// Pool is a parsed NodeOS with its defaults.
type Pool struct {
	UID, Name  string
	Generation int64
	// Target is the image that every host should run, Ref its location and
	// Product the product that it must contain.
	Target  ledger.Image
	Ref     nodeos.ImageRef
	Product string
	// StageOnly stages the image on all hosts and activates it on none.
	StageOnly bool

	MaxUnavailable     intstr.IntOrString
	Canary             []CanaryStep
	OrderBy            []string
	MaxParallelStaging int
	FailureThreshold   int
	MaxQuarantined     int
	// ControlPlane allows one host at a time in the cluster and requires a
	// quorum.
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

	// Suspended claims no hosts. Paused (who, when, why) and Deleting also abort
	// attempts that aren't activated yet.
	Suspended bool
	Paused    string
	Deleting  bool
	// Resume is the value of the resume annotation.
	Resume string
	// Round distinguishes attempts of a target that the pool returned to; Plan
	// sets it from the ledger.
	Round int64
	// Unverified is why the OS image isn't trusted; empty if it was verified.
	Unverified, UnverifiedReason string
}

// CanaryStep is a number of hosts, counted from the start of the rollout, that
// must be updated and healthy for the soak time before more are claimed.
type CanaryStep struct {
	Hosts intstr.IntOrString
	Soak  time.Duration
}

// SpecError is an invalid field of a NodeOS.
type SpecError struct{ Field, Problem string }

// Error implements error.
func (e *SpecError) Error() string { return fmt.Sprintf("spec.%s: %s", e.Field, e.Problem) }

// Reason is the condition reason.
func (e *SpecError) Reason() string { return "InvalidSpec" }

// PoolOf converts a NodeOS. The caller sets Product, Unverified and
// UnverifiedReason. Errors are of type *SpecError.
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
		MaxParallelStaging: cmp.Or(int(s.Strategy.MaxParallelStaging), defaultParallel),
		FailureThreshold:   cmp.Or(int(s.Strategy.FailureThreshold), 1),
		MaxQuarantined:     int(s.Strategy.MaxQuarantined),
		ControlPlane:       s.ControlPlane != nil,
		Drain:              DrainMode(s.Drain.Mode),
		DrainTimeout:       cmp.Or(s.Drain.Timeout.Duration, defaultDrain),
		DrainDeadline:      cmp.Or(OnDeadline(s.Drain.OnDeadline), DeadlineAbort),
		GateTimeout:        cmp.Or(s.Gates.Timeout.Duration, defaultGates),
		Soak:               s.Gates.Soak.Duration,
		HaltOnFailure:      s.OnFailure == "Halt",
		BootDeadline:       cmp.Or(s.BootDeadline.Duration, defaultBoot),
		CommitDeadline:     cmp.Or(s.CommitDeadline.Duration, defaultCommit),
		Suspended:          s.Suspend,
		Paused:             n.Annotations[v1alpha1.AnnotationPaused],
		Deleting:           !n.DeletionTimestamp.IsZero(),
		Resume:             n.Annotations[v1alpha1.AnnotationResume],
	}
	if _, ok := n.Annotations[v1alpha1.AnnotationPaused]; ok && p.Paused == "" {
		p.Paused = "no reason given"
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
			"%q is not supported: a reboot requires an operator certificate; use upgrade or stageUpgrade", sequence)}
	case p.CommitDeadline <= p.GateTimeout+p.Soak:
		return &SpecError{Field: "commitDeadline", Problem: fmt.Sprintf(
			"%s must exceed gates.timeout + gates.soak (%s), otherwise hosts roll back during verification",
			p.CommitDeadline, p.GateTimeout+p.Soak)}
	}
	if _, err := scaled(p.MaxUnavailable, 100, roundDown); err != nil {
		return &SpecError{Field: "strategy.maxUnavailable", Problem: err.Error()}
	}
	return nil
}

// Attempt returns the ID of the pool's attempt of its target, the same for all
// hosts. It changes with the host's rerun nonce, with the content of the
// orders, and when the pool returns to the target; it doesn't change with
// fields that only decide when and how many hosts are updated.
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

// attemptPrefix is the prefix of the attempt IDs of rollouts.
const attemptPrefix = "lockstep-"

// Limit returns how many of total hosts may be unavailable at once.
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

// scaled resolves a number or a percentage of total. A percentage above zero is
// at least 1.
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
		return 0, fmt.Errorf("%q is neither a number nor a percentage between 0%% and 100%%", v.StrVal)
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
