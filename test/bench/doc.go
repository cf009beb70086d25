// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures what the main job costs, compared withs peers, on a real
// control plane: etcd and kube-apiserver as child processes, nothing else.
//
// The peers do the same work on the same API server in the same round, in an
// order that changes with the round, each on objects of its own: a bare loop of
// patches over client-go, kubectl where there is one, and fluxcd/pkg/ssa, which
// is a module and a process of its own (directory peers). What is compared are
// ratios within a round; the row shows their median. Requests are those that
// the API server counted, CPU time is that of the processes' accounting:
// trust the requests first, the CPU time second and the clock last.
//
// The rows commit and idle are about the whole reconciler, as a process with its
// real role beside a Git server and a registry (test/environment). There the audit log
// tells its requests from those of the controller-manager.
//
// It prints a table, writes bin/bench.json and is run by "make bench".
// docs/performance.md keeps the latest table.
package main
