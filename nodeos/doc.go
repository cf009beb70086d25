// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeos holds the words of a host: its sequences, phases and tasks,
// its modes and capabilities, the requests that start a sequence and the
// facts that a host reports.
//
// A host is a machine and the agent on it. What happens on a host is a
// Sequence: an ordered list of phases, each a set of tasks that run together.
// Plan turns a sequence, a mode and a request into phases that name their
// tasks and carry parameters; it performs nothing. nodeos/runner runs the
// phases one sequence at a time and keeps a journal; nodeos/tasks holds the
// tasks; the machine itself stands behind the small roles of Host.
//
// The names follow the runtime package of Talos 0.14. Where that one says
// interface{} this one has a type, and where it hands functions around this
// one hands names around, so that a plan can be written to a journal and read
// again after a reboot.
//
// Everything here is a value or a pure function, except Drainer. The package
// imports nothing of this project.
package nodeos
