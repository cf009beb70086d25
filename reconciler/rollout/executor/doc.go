// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package executor performs the plans of package rollout.
//
// Executor.Sync reads the ledger, the cluster and the agents, makes a plan,
// writes the ledger and then performs each step of the plan once. It doesn't
// wait for slow results: the next Sync observes them. A Sync may be interrupted
// at any time and repeated by any leader, because all state is in the ledger,
// the Nodes' annotations and the agents' journals.
//
// Two executors, of the previous and the new leader, may run at once: claims
// are compare-and-swaps on one object, orders contain the fence, cordons are
// bound to the Node's UID and resourceVersion, and evictions to the pod's UID.
package executor
