// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package nodeos

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Fence orders the leaders of a cluster: a host rejects an order with a lower
// fence than the highest accepted one.
type Fence struct {
	// ClusterUID is the UID of the cluster; a host belongs to one cluster.
	ClusterUID string `json:"clusterUID"`
	// Epoch increases at each acquisition of leadership.
	Epoch uint64 `json:"epoch"`
}

// Order is the header of every request: its caller, id and fence.
type Order struct {
	// OperationID is the id of the operation. The same id from the same caller
	// with the same request is the same operation; any other use is rejected.
	OperationID string `json:"operationID"`
	// Caller is the verified identity from the caller's certificate.
	Caller string `json:"caller"`
	// Method is the RPC method; the id is bound to it.
	Method string `json:"method,omitempty"`
	// Attempt is the rollout attempt that the operation belongs to.
	Attempt string `json:"attempt,omitempty"`
	// Fence is the leader's fence; nil for orders not given by a leader.
	Fence *Fence `json:"fence,omitempty"`
	// Remote means that the order was received over the network; remote reboots
	// are rate-limited.
	Remote bool `json:"remote,omitempty"`
}

// Request is the data of a sequence: PlainRequest, UpgradeRequest,
// RollbackRequest or ResetRequest.
type Request interface {
	// Header returns the order header of the request.
	Header() Order
	// check returns an error if the request can't start the sequence.
	check(seq Sequence) error
}

// PlainRequest starts a sequence that needs no data: boot, bootstrap,
// initialize, shutdown, reboot, noop.
type PlainRequest struct {
	Order
}

// DeadlineAction is the action of a host whose new OS isn't committed before
// the deadline.
type DeadlineAction string

// The deadline actions.
const (
	// DeadlineRollback boots the previous OS; the default.
	DeadlineRollback DeadlineAction = "rollback"
	// DeadlineCommit commits the new OS.
	DeadlineCommit DeadlineAction = "commit"
	// DeadlineHold keeps waiting: the OS stays unconfirmed.
	DeadlineHold DeadlineAction = "hold"
)

// Limits of an upgrade request.
const (
	// DefaultCommitDeadline is the deadline of a request that sets none.
	DefaultCommitDeadline = 30 * time.Minute
	// MaxCommitDeadline is the longest allowed deadline.
	MaxCommitDeadline = 24 * time.Hour
)

// UpgradeRequest starts install, upgrade or stageUpgrade.
type UpgradeRequest struct {
	Order
	// Image is the image to install, by digest.
	Image ImageRef `json:"image"`
	// Product is the expected product; it's compared with the bytes under the
	// verified digest.
	Product string `json:"product"`
	// Version is the expected semantic version, compared in the same way.
	Version string `json:"version"`
	// CommitDeadline is the time from activation to the latest commit; progress
	// extends it. Zero means DefaultCommitDeadline.
	CommitDeadline time.Duration `json:"commitDeadline,omitempty"`
	// OnDeadline is the action at the deadline; empty means rollback.
	OnDeadline DeadlineAction `json:"onDeadline,omitempty"`
	// AutoCommit commits when the host's own checks pass, for hosts without a
	// reconciler.
	AutoCommit bool `json:"autoCommit,omitempty"`
}

// RollbackRequest starts rollback.
type RollbackRequest struct {
	Order
	// Digest is the expected digest of the previous OS; empty accepts any.
	Digest string `json:"digest,omitempty"`
}

// ResetOptions are the parameters of the reset sequence.
type ResetOptions interface {
	// GetGraceful reports whether services are stopped first.
	GetGraceful() bool
	// GetReboot reports whether the machine reboots; else it powers off.
	GetReboot() bool
	// GetSystemDiskTargets returns the partitions to wipe; none means all.
	GetSystemDiskTargets() []string
}

// ResetRequest starts reset. It names the machine, its installation and its
// boot, so that it's valid once and on one machine only.
type ResetRequest struct {
	Order
	// HostID must be this host's.
	HostID string `json:"hostID"`
	// InstallationID must be this installation's; each installation has a new one.
	InstallationID string `json:"installationID"`
	// BootID must be the current boot's.
	BootID string `json:"bootID"`
	// NotAfter is the end of the order's validity.
	NotAfter time.Time `json:"notAfter"`
	// Graceful stops the services first.
	Graceful bool `json:"graceful,omitempty"`
	// Reboot reboots afterwards; else the machine powers off.
	Reboot bool `json:"reboot,omitempty"`
	// Targets are the partitions to wipe; none means all.
	Targets []string `json:"targets,omitempty"`
}

// GetGraceful implements ResetOptions.
func (r ResetRequest) GetGraceful() bool { return r.Graceful }

// GetReboot implements ResetOptions.
func (r ResetRequest) GetReboot() bool { return r.Reboot }

// GetSystemDiskTargets implements ResetOptions.
func (r ResetRequest) GetSystemDiskTargets() []string { return r.Targets }

// Header implements Request.
func (r PlainRequest) Header() Order { return r.Order }

// Header implements Request.
func (r UpgradeRequest) Header() Order { return r.Order }

// Header implements Request.
func (r RollbackRequest) Header() Order { return r.Order }

// Header implements Request.
func (r ResetRequest) Header() Order { return r.Order }

func (r PlainRequest) check(seq Sequence) error {
	switch seq {
	case SequenceBoot, SequenceBootstrap, SequenceInitialize, SequenceShutdown, SequenceReboot, SequenceNoop:
		return nil
	default:
		return fmt.Errorf("%w: a plain request can't start %s", ErrInvalidSequenceData, seq)
	}
}

func (r UpgradeRequest) check(seq Sequence) error {
	switch seq {
	case SequenceInstall, SequenceUpgrade, SequenceStageUpgrade:
	default:
		return fmt.Errorf("%w: an upgrade request can't start %s", ErrInvalidSequenceData, seq)
	}
	if err := r.Image.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidSequenceData, err)
	}
	if _, err := CompareVersions(r.Version, r.Version); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidSequenceData, err)
	}
	if r.CommitDeadline < 0 || r.CommitDeadline > MaxCommitDeadline {
		return fmt.Errorf("%w: commit deadline %s is not between 0 and %s", ErrInvalidSequenceData, r.CommitDeadline, MaxCommitDeadline)
	}
	switch r.OnDeadline {
	case "", DeadlineRollback, DeadlineCommit, DeadlineHold:
		return nil
	default:
		return fmt.Errorf("%w: onDeadline is %q, want rollback, commit or hold", ErrInvalidSequenceData, r.OnDeadline)
	}
}

func (r RollbackRequest) check(seq Sequence) error {
	if seq != SequenceRollback {
		return fmt.Errorf("%w: a rollback request can't start %s", ErrInvalidSequenceData, seq)
	}
	return nil
}

func (r ResetRequest) check(seq Sequence) error {
	if seq != SequenceReset {
		return fmt.Errorf("%w: a reset request can't start %s", ErrInvalidSequenceData, seq)
	}
	if len(r.Targets) > maxTargets {
		return fmt.Errorf("%w: %d reset targets, at most %d are allowed", ErrInvalidSequenceData, len(r.Targets), maxTargets)
	}
	return nil
}

// Limits of every request.
const (
	maxTargets = 32
	maxID      = 253
)

// CheckRequest checks that request can start seq: it has an operation id and a
// caller, and its type fits the sequence. The error wraps ErrInvalidSequenceData.
func CheckRequest(seq Sequence, request Request) error {
	if seq < 0 || int(seq) >= len(sequenceNames()) {
		return fmt.Errorf("sequence not implemented: %q", seq)
	}
	if request == nil {
		return fmt.Errorf("%w: %s has no request", ErrInvalidSequenceData, seq)
	}
	o := request.Header()
	for _, f := range []struct{ name, value string }{{"operation id", o.OperationID}, {"caller", o.Caller}} {
		if f.value == "" || len(f.value) > maxID {
			return fmt.Errorf("%w: %s has %d bytes, want 1 to %d", ErrInvalidSequenceData, f.name, len(f.value), maxID)
		}
	}
	if o.Fence != nil && o.Fence.ClusterUID == "" {
		return fmt.Errorf("%w: the fence has no cluster UID", ErrInvalidSequenceData)
	}
	return request.check(seq)
}

// Digest returns the hash that an operation id is bound to: the SHA-256, in
// lower-case hex, of the caller, the method, the sequence and the request
// without its fence (a new leader repeats orders under its own fence).
func Digest(seq Sequence, request Request) (string, error) {
	body, err := MarshalRequest(withoutFence(request))
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", seq)
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// withoutFence returns a copy of the request without its fence.
func withoutFence(request Request) Request {
	switch r := request.(type) {
	case PlainRequest:
		r.Fence = nil
		return r
	case UpgradeRequest:
		r.Fence = nil
		return r
	case RollbackRequest:
		r.Fence = nil
		return r
	case ResetRequest:
		r.Fence = nil
		return r
	default:
		return request
	}
}

// envelope is the stored form of a request.
type envelope struct {
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body"`
}

// MarshalRequest returns the stored form of a request: JSON with its kind.
func MarshalRequest(request Request) ([]byte, error) {
	var kind string
	switch request.(type) {
	case PlainRequest:
		kind = "plain"
	case UpgradeRequest:
		kind = "upgrade"
	case RollbackRequest:
		kind = "rollback"
	case ResetRequest:
		kind = "reset"
	default:
		return nil, fmt.Errorf("%w: request of unknown type %T", ErrInvalidSequenceData, request)
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode %s request: %w", kind, err)
	}
	return json.Marshal(envelope{Kind: kind, Body: body})
}

// UnmarshalRequest parses the output of MarshalRequest.
func UnmarshalRequest(data []byte) (Request, error) {
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	switch e.Kind {
	case "plain":
		return decode[PlainRequest](e.Body)
	case "upgrade":
		return decode[UpgradeRequest](e.Body)
	case "rollback":
		return decode[RollbackRequest](e.Body)
	case "reset":
		return decode[ResetRequest](e.Body)
	default:
		return nil, fmt.Errorf("decode request: %w: unknown kind %q", ErrInvalidSequenceData, e.Kind)
	}
}

// decode decodes a request of type R; unknown fields of newer versions are ignored.
func decode[R Request](body []byte) (Request, error) {
	var r R
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, errors.New("decode request: no body")
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	return r, nil
}
