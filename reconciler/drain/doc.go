// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package drain cordons nodes and has their pods leave by eviction.
//
// A cordon carries the attempt that made it, in the same patch that tests the
// Node's UID and resourceVersion; a cordon that carries another name, or none,
// is someone else's and is never touched. Pods go by policy/v1 Eviction alone,
// so that their disruption budgets hold; they're deleted only where force was
// asked for, after the deadline. The package keeps no clock and no memory of a
// drain: whoever calls it counts the time from what it has stored, and calls
// Evict again until nothing is left.
//
// Which pods stay, go or block follows kubectl drain, with two differences:
// emptyDir volumes never block, and pods of a node whose kubelet is dead
// aren't waited for once they have been told to go.
package drain
