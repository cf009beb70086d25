// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command page writes docs/reference/reasons.md to its standard output.
package main

import (
	"os"

	"github.com/lockstep-dev/lockstep/config/reasons"
)

func main() {
	if _, err := os.Stdout.WriteString(reasons.Page()); err != nil {
		os.Exit(1)
	}
}
