// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command lockstep-agent serves one host: it accepts orders over mutual TLS, stages,
// activates, commits and rolls back operating systems, and reports facts of the host.
// It doesn't depend on Kubernetes.
//
// With the backend sim the machine is a directory. -supervise simulates its firmware:
// it selects the slot, starts the agent as a child process, and starts a new one with
// a new boot id after each reboot.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
)

// version is set by the linker; "dev" otherwise. Reconcilers support agents of their
// own minor version and the two before.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil && !nodeos.IsRebootError(err) && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "lockstep-agent:", err)
	}
	os.Exit(exitCode(err))
}

// exitCode returns the exit code that reports the reboot command to the supervisor.
func exitCode(err error) int {
	var reboot nodeos.RebootError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &reboot) && reboot.Cmd == nodeos.RebootPowerOff:
		return sim.ExitPowerOff
	case errors.As(err, &reboot):
		return sim.ExitRestart
	default:
		return 1
	}
}

// run runs the program until ctx ends, or returns a RebootError when the machine goes
// down.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if !cfg.sim.supervise {
		return serve(ctx, cfg, stderr)
	}
	log, err := newLogger(cfg.logLevel, stderr)
	if err != nil {
		return err
	}
	return supervise(ctx, cfg, childArgs(args), stderr, log)
}
