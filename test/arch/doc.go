// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package arch holds the architecture as tests: which package may import which,
// what a program may link, and what every file has. docs/architecture.md says
// why; when the two differ, one of them is wrong.
package arch
