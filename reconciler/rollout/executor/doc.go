// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package executor does what a plan of package rollout says.
//
// A pass reads the ledger, the cluster and the agents, plans, writes the
// ledger, and only then does the plan's steps, each once. It waits for nothing
// that takes long: the next pass sees what came of it. So a pass may be killed
// at any instant and repeated by anyone; the ledger, the Nodes' annotations
// and the agents' journals hold all that must be remembered.
//
// Two executors may run at once, the old leader of a cluster and the new one:
// claims are compare-and-swaps on one object, orders carry the fence, cordons
// are tied to the Node's UID and resourceVersion, evictions to the pod's UID.
package executor
