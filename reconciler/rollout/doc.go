// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package rollout chooses, purely, which hosts of a pool take which step now.
//
// Plan is given everything that is known (the declared pool, the Nodes, what
// the agents report, the ledger) and the time, and returns the ledger as it
// must stand before anything is done, the steps to do then, and the status to
// show. It performs nothing, asks nobody and keeps no memory, so that a plan
// after a crash, by another leader or on doubled messages is the same plan:
//
//	Idle → Pending → Staging → Staged → Claimed → Draining → Drained →
//	Rebooting → Verifying → Committing → Releasing → Idle
//
// with Aborted, RollingBack, RolledBack, Lost and Quarantined beside it. The
// states up to Staged follow from what the agent reports; those from Claimed
// on are a slot of the ledger, written before and freed after everything that
// disrupts. Package executor is the thin loop that does what a plan says.
package rollout
