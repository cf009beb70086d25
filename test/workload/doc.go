// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package workload generates what is applied in measurements and in tests of the
// whole: a mix of 1,000 objects, a release in the shape of a real platform's,
// and twenty kinds with an edit each. The tests and the figures are about the
// same objects.
package workload
