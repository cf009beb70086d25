// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package env runs a whole Lockstep installation on one machine with real
// parts: a Kubernetes control plane, a Git server, an OCI registry, hosts with
// agents, and the reconciler, all as processes or servers on loopback. The
// demo and the whole-program tests use it.
//
// No part of Lockstep is replaced: the programs are built from this tree, and
// what users do is done with the real git and the lockstep command. An Env
// stops everything that it started.
package env
