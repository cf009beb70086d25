// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package runner implements the Controller of a host: it runs one sequence at a
// time, keeps a journal, and resumes after a crash or a reboot.
//
// The core is pure. A State is the content of the journal. Admit accepts or
// rejects an order, Decide and Extend change the trial, Step applies an event
// (the process started, a phase ended, time passed); each returns the next State
// and the events to publish. ActivityOf returns the activity that a State
// requires. The Controller is the loop around the core: it syncs each State to
// the journal before it acts on it, and starts or stops the current activity
// accordingly. After a crash at any instant, the next start continues from the
// journal and reaches the same end.
//
//	          Admit                       every phase done
//	(idle) ──────────► Running ─────────────────────────────► Succeeded
//	                     │  ▲                                     ▲
//	      boot phase ran │  │ new boot id, wanted digest runs     │ commit
//	                     ▼  │                                     │
//	                  Rebooting           Running ──verified──► OnTrial
//	                     │                                        │
//	                     │ another OS runs                        │ rollback, or
//	                     ▼                                        ▼ the deadline
//	                 RolledBack ◄────────────── rollback ◄── Running (rolling back)
//
//	a phase fails for good: abort-and-undo ► Undoing ► Failed; pause ► Paused
//
// The core alone decides the content of the journal. The state of the machine
// (which OS runs, whether it's committed) is read from the host at each start
// and has precedence over the journal.
//
// The type step is one pure transition; its methods are the cases of a single
// state machine, which share the next State and the events.
package runner
