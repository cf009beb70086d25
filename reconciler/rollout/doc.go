// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package rollout decides which hosts of a pool take which step next.
//
// Plan is a pure function. Its input is the declared pool, the Nodes, the
// agents' reports, the ledger and the time; its output is the ledger to write
// first, the steps to perform after that, and the status to report. It keeps
// no state, so a plan made after a crash, by another leader or for a repeated
// event is the same plan:
//
//	Idle → Pending → Staging → Staged → Claimed → Draining → Drained →
//	Rebooting → Verifying → Committing → Releasing → Idle
//
// and, for attempts that fail, Aborted, RollingBack, RolledBack, Lost and
// Quarantined. States up to Staged are derived from the agents' reports. States
// from Claimed on are stored as a slot in the ledger, which is written before
// and freed after every disruption. Package executor performs the steps.
//
// The type planner is one call of Plan; its methods are the cases of a single
// pure function, which share its input and the plan under construction.
package rollout
