// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// newReconcileCommand returns `lockstep reconcile`.
func newReconcileCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Trigger a reconciliation now",
	}
	cmd.AddCommand(newReconcileSourceCommand())
	return cmd
}

// newSourceCommand returns `lockstep source`.
func newSourceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "source",
		Short: "Manage Git sources",
	}
	cmd.AddCommand(newAcceptRewindCommand())
	return cmd
}

func newReconcileSourceCommand() *cobra.Command {
	var flags clusterFlags
	cmd := &cobra.Command{
		Use:   "source [NAME]",
		Short: "Fetch a Git source now instead of at its next interval",
		Long: `Fetch a Git source now instead of at its next interval.

NAME may be omitted if there is one GitSource.`,
		Example: "  lockstep reconcile source\n  lockstep reconcile source fleet",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return annotateSource(cmd.Context(), cmd.OutOrStdout(), &flags, args,
				v1alpha1.AnnotationRequestedAt, time.Now().UTC().Format(time.RFC3339Nano), "annotated: it is fetched now")
		},
	}
	flags.register(cmd)
	return cmd
}

var commitHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

func newAcceptRewindCommand() *cobra.Command {
	var flags clusterFlags
	cmd := &cobra.Command{
		Use:   "accept-rewind HASH [NAME]",
		Short: "Accept one commit that does not contain the accepted one",
		Long: `Accept one commit that does not contain the accepted one.

A ref that no longer contains the accepted commit (a force-push), or a moved tag,
is rejected. accept-rewind accepts the commit HASH once; the next rewind is
rejected again. Signatures and all other checks still apply.`,
		Example: "  lockstep source accept-rewind 9f2c1ab4c1c1a4d3a7f0f3ab7d6f8d4a3c2b1a09",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !commitHash.MatchString(args[0]) {
				return invalid(fmt.Errorf("commit %.64q: want the full hash, 40 lower-case hexadecimal digits", args[0]))
			}
			return annotateSource(cmd.Context(), cmd.OutOrStdout(), &flags, args[1:], v1alpha1.AnnotationAcceptRewind, args[0], "annotated: it accepts commit "+args[0]+" once")
		},
	}
	flags.register(cmd)
	return cmd
}

// annotateSource sets an annotation of the named GitSource, or of the only one.
func annotateSource(ctx context.Context, out io.Writer, flags *clusterFlags, args []string, key, value, result string) error {
	c, err := flags.client()
	if err != nil {
		return err
	}
	source, err := pickSource(ctx, c, args)
	if err != nil {
		return err
	}
	if err := annotate(ctx, c, source, key, &value); err != nil {
		return err
	}
	return printf(out, "gitsource/%s %s\n", source.Name, result)
}

func pickSource(ctx context.Context, c client.Client, args []string) (*v1alpha1.GitSource, error) {
	if len(args) == 1 {
		source := &v1alpha1.GitSource{}
		source.Namespace, source.Name = v1alpha1.Namespace, args[0]
		return source, nil
	}
	var list v1alpha1.GitSourceList
	if err := c.List(ctx, &list, client.InNamespace(v1alpha1.Namespace)); err != nil {
		return nil, fmt.Errorf("list the Git sources: %w", err)
	}
	switch len(list.Items) {
	case 0:
		return nil, errors.New("no GitSource found in namespace " + v1alpha1.Namespace)
	case 1:
		return &list.Items[0], nil
	}
	return nil, invalid(fmt.Errorf("found %d Git sources: specify one by NAME", len(list.Items)))
}
