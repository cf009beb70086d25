// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package rollout

// raceFactor is how much more time is allowed than the rule says: other tests
// run beside.
const raceFactor = 5
