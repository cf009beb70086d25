// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures Lockstep beside its peers on a real control plane:
// etcd and kube-apiserver as child processes.
//
// The peers do the same work on the same API server in the same round, in an
// order that changes with the round, each with its own objects: a bare loop of
// patches with client-go, kubectl if it is installed, and fluxcd/pkg/ssa, a
// module and a process of its own (directory peers). Ratios are computed
// within a round; a row shows their median. Requests come from the API
// server's counters, CPU time from the processes' accounting: trust the
// requests first, the CPU time second and wall time last.
//
// The rows worker, commit and idle measure the whole reconciler, as a process
// with its real role, with a Git server and a registry (test/env). The audit
// log separates its requests from those of the controller-manager.
//
// It prints a table, writes bin/bench.json and is run by "make bench".
// docs/performance.md has the latest table.
package main
