// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package rollout

// raceFactor is the factor by which a duration may exceed its limit, as other
// tests run in parallel.
const raceFactor = 5
