// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package reconciler wires the pieces to one program: the [Operator] and a
// controller a declared kind, one file each.
//
// A controller gathers facts, asks a pure package what to do, and does it. The
// controllers share two stores: what was accepted (package accepted), and the
// runtime of each release (its worker, its apply engine). Everything that
// changes the cluster on a release's behalf goes through reconciler/apply,
// which alone impersonates the applier.
package reconciler
