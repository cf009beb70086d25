// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package env is a small data centre on one machine, of real parts: a
// Kubernetes control plane, a Git server, an OCI registry, hosts with agents,
// and the reconciler, all as processes or servers on loopback. The
// demonstration and the whole-program tests play in it.
//
// Nothing here takes a part of Lockstep's place: the programs are built from
// this tree, and what people do by hand is done by the real git and by the
// lockstep command. A World stops everything that it started.
package env
