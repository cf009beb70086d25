// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"time"

	"github.com/lockstep-dev/lockstep/payload"
)

// The pauses between two prunes outside of a sync: after an event, and without any,
// for kinds that can't be watched.
const (
	pruneBackoff  = time.Second
	pruneInterval = time.Minute
)

// pruneAttempt is the prune outside of a sync: it continues while deletions haven't
// ended, but the release is complete.
type pruneAttempt struct {
	running, stopping bool
	// again is set by an event during the prune.
	again bool
	// at is when the next prune is due, earliest the end of the pause after the last
	// one.
	at, earliest time.Time
}

// prunes reports whether deletions of a complete release haven't ended.
func (c *core) prunes() bool {
	return c.pruning != nil && c.pruning.Total > 0 && c.accepted != nil && c.state == payload.Reconciling && c.completed > 0 &&
		!c.paused && !c.sync.running && !c.prune.running
}

// startPrune starts a due prune.
func (c *core) startPrune(now time.Time) []action {
	if !c.prunes() || c.prune.at.After(now) {
		return nil
	}
	c.prune.running, c.prune.stopping, c.prune.again = true, false, false
	return []action{startPrune{c.accepted.payload}}
}

// pruneChanged makes the next prune due after a change of an object that is being
// deleted: one outside the release, or of a delete manifest.
func (c *core) pruneChanged(id payload.ObjectID, now time.Time) {
	if c.accepted == nil {
		return
	}
	if m := c.accepted.manifest(id); m != nil && !m.Delete {
		return
	}
	if c.prune.running || c.sync.running {
		c.prune.again = true
		return
	}
	c.prune.at = now
	if c.prune.earliest.After(now) {
		c.prune.at = c.prune.earliest
	}
}

// pruned records the result of a prune.
func (c *core) pruned(p Pruning, now time.Time) {
	c.pruning = &p
	c.prune.earliest = now.Add(pruneBackoff)
	c.prune.at = now.Add(pruneInterval)
	if c.prune.again {
		c.prune.at = c.prune.earliest
	}
	c.prune.again = false
}

// pruneEnded ends a prune. A full sync follows a failed one and reports the error.
func (c *core) pruneEnded(e pruneEnded, now time.Time) {
	stopped := c.prune.stopping
	c.prune.running, c.prune.stopping = false, false
	switch {
	case stopped:
	case e.failed:
		c.nextSync = now
		c.prune.at = now.Add(pruneInterval)
	default:
		c.pruned(e.pruning, now)
	}
}
