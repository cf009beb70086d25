// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command lockstep is what people type: it makes and signs releases and trust,
// checks desired state, shows how a cluster stands and works the brakes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker; "dev" otherwise.
var version = "dev"

// Exit codes of the command, documented in `lockstep --help`.
const (
	exitFailed  = 1 // something could not be done
	exitInvalid = 2 // the input or the release is invalid or refused
)

// exitError carries the exit code that an error asks for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// invalid marks err as bad input or a refusal: exit code 2.
func invalid(err error) error { return &exitError{code: exitInvalid, err: err} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "lockstep:", explain(err))
	if coded, ok := errors.AsType[*exitError](err); ok {
		return coded.code
	}
	return exitFailed
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "lockstep",
		Short: "Keep a cluster's release and its nodes' operating systems in lockstep with Git",
		Long: `lockstep keeps a Kubernetes cluster and the operating systems of its nodes in
lockstep with a Git repository.

Exit codes: 0 done, 1 something could not be done, 2 the input is invalid or
the release is refused.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.AddCommand(
		newStatusCommand(),
		newExplainCommand(),
		newSourceCommand(),
		newPauseCommand(),
		newResumeCommand(),
		newValidateCommand(),
		newReleaseCommand(),
		newOSCommand(),
		newTrustCommand(),
		newPKICommand(),
		newNodeCommand(),
	)
	return root
}
