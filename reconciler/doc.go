// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package reconciler assembles the [Operator]: it creates the controllers of the
// declared kinds (packages source, release, pool and policy) and hands each what it
// needs.
//
// Controllers don't import each other: each declares the interfaces that it uses. A
// controller gathers facts, calls a pure package to decide, and acts. Writes on
// behalf of a release go through reconciler/apply, which alone impersonates the
// applier.
package reconciler
