// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// FenceError says that an order's fence isn't accepted. It carries the stored
// one, so that a rightful leader can rise above it.
type FenceError struct {
	// Stored is the highest accepted fence, Offered the order's.
	Stored nodeos.Fence
	// Offered is the order's fence.
	Offered nodeos.Fence
	// Why is Stale, OtherCluster or Jump.
	Why string
}

// Error implements error.
func (e *FenceError) Error() string {
	switch e.Why {
	case "OtherCluster":
		return fmt.Sprintf("the order is of cluster %q, this host obeys cluster %q", e.Offered.ClusterUID, e.Stored.ClusterUID)
	case "Jump":
		return fmt.Sprintf("fence epoch %d is more than %d above the stored %d; an administrator can reset the fence of the host", e.Offered.Epoch, maxEpochJump, e.Stored.Epoch)
	default:
		return fmt.Sprintf("fence epoch %d is lower than the stored %d: another leader has taken over", e.Offered.Epoch, e.Stored.Epoch)
	}
}

// Reason is the condition reason.
func (e *FenceError) Reason() string { return "Fenced" }

// ConflictError says that an operation id is taken by something else.
type ConflictError struct {
	// ID is the id that was offered.
	ID string
	// StoredHash and OfferedHash are what the id is and was to be bound to.
	StoredHash string
	// OfferedHash is the offered request's.
	OfferedHash string
	// SameCaller says that the caller is the same one.
	SameCaller bool
}

// Error implements error.
func (e *ConflictError) Error() string {
	who := "another caller"
	if e.SameCaller {
		who = "the same caller"
	}
	return fmt.Sprintf("operation id %s exists already, from %s with request %s; this request is %s: use a new id", e.ID, who, e.StoredHash, e.OfferedHash)
}

// Reason is the condition reason.
func (e *ConflictError) Reason() string { return "OperationConflict" }

// RestartLimitError says that the machine was taken down too recently.
type RestartLimitError struct {
	// Last is when it was taken down, Interval the least time between two.
	Last time.Time
	// Interval is the least time between two remote restarts.
	Interval time.Duration
	// RetryAfter is how long to wait.
	RetryAfter time.Duration
}

// Error implements error.
func (e *RestartLimitError) Error() string {
	return fmt.Sprintf("the machine was restarted at %s; remote restarts are at least %s apart: retry in %s",
		e.Last.UTC().Format(time.RFC3339), e.Interval, e.RetryAfter.Round(time.Second))
}

// Reason is the condition reason.
func (e *RestartLimitError) Reason() string { return "RestartLimited" }
