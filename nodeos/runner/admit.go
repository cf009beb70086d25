// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Policy is the host's configuration for orders.
type Policy struct {
	// ClusterUID is the cluster that the host belongs to; empty accepts the
	// cluster of the first accepted fence.
	ClusterUID string
	// RestartInterval is the minimum time between two remote restarts.
	RestartInterval time.Duration
}

// Order is an order with its plan.
type Order struct {
	// Sequence is the sequence to run.
	Sequence nodeos.Sequence
	// Request is the data of the order.
	Request nodeos.Request
	// Plan is the list of phases from the sequencer.
	Plan []nodeos.Phase
	// Options are the options of the run.
	Options nodeos.ControllerOptions
}

// Admit accepts or rejects an order. An accepted order takes effect once the
// returned state is on disk. With an error the state is unchanged.
func Admit(s State, o Order, p Policy, now time.Time) (State, []Action, nodeos.Ticket, error) {
	h := o.Request.Header()
	hash, err := nodeos.Digest(o.Sequence, o.Request)
	if err != nil {
		return s, nil, nodeos.Ticket{}, err
	}
	fence, err := checkFence(s.Fence, h.Fence, p.ClusterUID)
	if err != nil {
		return s, nil, nodeos.Ticket{}, err
	}
	t := stepOf(s, now)
	t.s.Fence = fence
	if known, ok := s.Status(h.OperationID); ok {
		if known.RequestHash != hash || known.Caller != h.Caller {
			return s, nil, nodeos.Ticket{}, &ConflictError{
				ID: h.OperationID, StoredHash: known.RequestHash, OfferedHash: hash, SameCaller: known.Caller == h.Caller,
			}
		}
		return t.s, nil, nodeos.Ticket{OperationID: known.ID, RequestHash: hash, Known: true, State: known.State}, nil
	}
	if err := checkStart(s, o, p, now); err != nil {
		return s, nil, nodeos.Ticket{}, err
	}
	op, err := newOperation(o, hash, now)
	if err != nil {
		return s, nil, nodeos.Ticket{}, err
	}
	op.From = s.Running.Digest
	t.accept(op)
	return t.s, t.out, nodeos.Ticket{OperationID: op.ID, RequestHash: hash, State: t.stateOf(op.ID)}, nil
}

// checkStart returns an error if a new operation can't get the lock or if its
// restart would exceed the rate limit.
func checkStart(s State, o Order, p Policy, now time.Time) error {
	if holder := s.holder(); holder != nil {
		allowed := o.Options.Takeover
		if s.Next == nil {
			switch nodeos.CanTakeOver(holder.Sequence, o.Sequence) {
			case nodeos.TakeoverAlways:
				allowed = true
			case nodeos.TakeoverForced:
				allowed = allowed || o.Options.Force
			case nodeos.TakeoverNever:
			}
		}
		if !allowed || s.Next != nil {
			return &nodeos.LockedError{By: holder.ID, Sequence: holder.Sequence, Since: holder.Started, Wanted: o.Sequence}
		}
	}
	if !o.Request.Header().Remote || !o.Sequence.Restarts() || !s.LastRestart.Remote {
		return nil
	}
	// One rollback belongs to the activation before it.
	if o.Sequence == nodeos.SequenceRollback && s.LastRestart.Sequence != nodeos.SequenceRollback {
		return nil
	}
	if since := now.Sub(s.LastRestart.At); since < p.RestartInterval {
		return &RestartLimitError{Last: s.LastRestart.At, Interval: p.RestartInterval, RetryAfter: p.RestartInterval - since}
	}
	return nil
}

// holder returns the operation that holds the lock: the waiting one, else the
// running one.
func (s State) holder() *Operation {
	if s.Next != nil {
		return s.Next
	}
	return s.Op
}

func newOperation(o Order, hash string, now time.Time) (*Operation, error) {
	body, err := nodeos.MarshalRequest(o.Request)
	if err != nil {
		return nil, err
	}
	h := o.Request.Header()
	op := &Operation{
		OperationStatus: nodeos.OperationStatus{
			ID: h.OperationID, Sequence: o.Sequence, Caller: h.Caller, Method: h.Method, Attempt: h.Attempt,
			RequestHash: hash, State: nodeos.OperationWaiting, PhaseCount: len(o.Plan), Started: now,
		},
		Request: body, Remote: h.Remote, Plan: o.Plan,
	}
	if r, ok := o.Request.(nodeos.UpgradeRequest); ok {
		op.Digest = r.Image.Digest
	}
	return op, nil
}

// accept starts the operation, or stops the running one first.
func (t *step) accept(op *Operation) {
	if t.s.Op == nil {
		t.s.Op = op
		t.begin(false)
		return
	}
	op.StopBy = t.now.Add(takeoverGrace)
	t.s.Next = op
	if t.s.Op.State != nodeos.OperationUndoing {
		t.s.Op.Stop = &Stop{Takeover: true, Reason: "TakenOver", Message: "interrupted by operation " + op.ID + " (" + op.Sequence.String() + ")"}
	}
}

// checkFence returns the fence to store if the order is accepted.
func checkFence(stored nodeos.Fence, offered *nodeos.Fence, clusterUID string) (nodeos.Fence, error) {
	if offered == nil {
		return stored, nil
	}
	known := stored
	if known.ClusterUID == "" {
		known.ClusterUID = clusterUID
	}
	refuse := func(why string) (nodeos.Fence, error) {
		return stored, &FenceError{Stored: known, Offered: *offered, Why: why}
	}
	switch {
	case known.ClusterUID != "" && known.ClusterUID != offered.ClusterUID:
		return refuse("OtherCluster")
	case offered.Epoch < stored.Epoch:
		return refuse("Stale")
	case stored.Epoch != 0 && offered.Epoch-stored.Epoch > maxEpochJump:
		return refuse("Jump")
	}
	return *offered, nil
}
