// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeos defines the domain of a host: sequences, phases and tasks,
// modes and capabilities, the requests that start a sequence, and the facts
// that a host reports.
//
// A host is a machine and the agent on it. A Sequence is an ordered list of
// phases; the tasks of a phase run concurrently. Plan is a pure function from
// a sequence, a mode and a request to phases that contain task names and
// parameters. nodeos/runner executes the phases, one sequence at a time, and
// keeps a journal; nodeos/tasks implements the tasks; Host abstracts the
// machine.
//
// The names follow the runtime package of Talos 0.14, with types in place of
// interface{} and task names in place of functions, so that a plan can be
// journaled and resumed after a reboot.
//
// All types are values and all functions are pure, except Drainer. The package
// imports only leaf packages of config.
//
// It has many small files, one per subject of the published document that its
// names come from; splitting them would split that vocabulary.
package nodeos
