// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command lockstep-agent serves one host: it takes orders over mutual TLS,
// stages, activates, commits and rolls back operating systems, and says what
// is true on the host. It works when Kubernetes doesn't.
//
// With the backend sim the machine is a directory. -supervise plays its
// firmware: it chooses the slot, starts the agent as a process of its own, and
// starts it again, with a new boot id and a new pid, whenever it reboots.
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

// version is set by the linker; "dev" otherwise. Reconcilers serve agents of
// their own minor version and the two before.
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

// exitCode tells the supervisor what the machine does next.
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

// run is the whole program; it ends with ctx, or with a RebootError when the
// machine goes down.
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
