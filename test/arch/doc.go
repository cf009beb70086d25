// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package arch tests the architecture: which package may import which, what a
// program may link, and what every file has. docs/architecture.md explains
// why.
package arch
