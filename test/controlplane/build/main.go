// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command build compiles the tests' control plane and kwok into the user's
// cache if they are missing, and prints their paths.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, stdout, stderr io.Writer) error {
	for _, ensure := range []func(context.Context, io.Writer) (string, error){controlplane.Ensure, controlplane.EnsureKwok} {
		path, err := ensure(ctx, stderr)
		if err != nil {
			return err // it names the binary
		}
		if _, err := fmt.Fprintln(stdout, path); err != nil {
			return fmt.Errorf("print the path: %w", err)
		}
	}
	return nil
}
