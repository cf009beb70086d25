// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command lockstep is the command line: it builds and signs releases and trust
// policies, validates desired state, shows the state of a cluster and pauses
// rollouts.
//
// There are one or two files per command.
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
	exitFailed  = 1 // the command failed
	exitInvalid = 2 // the input is invalid or the release is rejected
)

// exitError is an error with an exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// invalid gives err the exit code 2: invalid input or a rejected release.
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
		Short: "Keep clusters and their node operating systems in sync with Git",
		Long: `Keep a Kubernetes cluster and the operating systems of its nodes in sync with a
Git repository.

Exit codes: 0 success, 1 failure, 2 invalid input or a rejected release.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.AddCommand(
		newStatusCommand(),
		newExplainCommand(),
		newReconcileCommand(),
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
