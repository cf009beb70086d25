// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package drain cordons nodes and evicts their pods.
//
// A cordon records its owner, the attempt, in an annotation; the same patch
// tests the Node's UID and resourceVersion. A cordon without that owner is
// external and never changed. Pods are removed by policy/v1 evictions, so their
// disruption budgets are respected; they are deleted only with force, after the
// deadline. Apart from the backoff per pod, the package keeps no state: callers
// store the start time and call Round again until no pod is left.
//
// Pods are classified as kubectl drain does, with two differences: emptyDir
// volumes never block, and terminating pods of a node whose kubelet is dead
// aren't waited for.
package drain
