// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

//go:build race

package rollout

// raceFactor is how much more time the race detector may take.
const raceFactor = 20
