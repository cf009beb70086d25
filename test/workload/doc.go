// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package workload generates objects for benchmarks and whole-program tests: a
// mix of 1,000 objects, a release of realistic size, and twenty kinds with an
// edit each.
package workload
