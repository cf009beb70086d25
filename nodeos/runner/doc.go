// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package runner is the Controller of a host: it runs sequences one at a
// time, keeps a journal, and goes on where it was after a crash or a reboot.
//
// The core is pure. A State is all that the journal holds; Admit says whether
// an order is accepted, Decide and Extend act on the system on trial, Step
// takes what happened (the process started, a phase ended, time passed), and
// each returns the next State with what to publish. Activity says what should
// be going on in a State. The Controller around them is a loop: it writes each
// State to the journal, synced, before it acts on it, and makes what goes on
// agree with Activity. So a crash at any instant leaves a State from which the
// next start reaches the same end.
//
//	          Admit                       every phase done
//	(idle) ──────────► Running ─────────────────────────────► Succeeded
//	                     │  ▲                                     ▲
//	      boot phase ran │  │ new boot id, wanted digest runs     │ commit
//	                     ▼  │                                     │
//	                  Rebooting           Running ──verified──► OnTrial
//	                     │                                        │
//	                     │ another system runs                    │ rollback, or
//	                     ▼                                        ▼ the deadline
//	                 RolledBack ◄──────────── the way back ◄── Running (back)
//
//	a phase failed for good: abort-and-undo ► Undoing ► Failed; pause ► Paused
//
// What is on disk is decided by the core alone; what is true of the machine
// (which system runs, whether it's committed) is read from the host at each
// start and wins over the journal.
package runner
