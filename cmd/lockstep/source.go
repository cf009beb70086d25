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

// newSourceCommand returns `lockstep source`: what people ask of a GitSource
// besides what they declare.
func newSourceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "source",
		Short: "Ask a Git source to look now, or accept one rewind of it",
	}
	cmd.AddCommand(newSourceLookCommand(), newAcceptRewindCommand())
	return cmd
}

func newSourceLookCommand() *cobra.Command {
	var flags clusterFlags
	cmd := &cobra.Command{
		Use:     "look [NAME]",
		Short:   "Look at the remote now instead of at the next interval",
		Example: "  lockstep source look\n  lockstep source look fleet",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return annotateSource(cmd.Context(), cmd.OutOrStdout(), &flags, args,
				v1alpha1.AnnotationRequestedAt, time.Now().UTC().Format(time.RFC3339Nano), "looks now")
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
		Short: "Accept one commit although it doesn't contain the accepted one",
		Long: `A ref that no longer contains the accepted commit (a force-push), or a tag that
moved, is refused. accept-rewind accepts exactly the commit HASH, once: as soon
as it's the accepted one, the next rewind is refused again. All other checks,
signatures above all, hold for it as for any commit.`,
		Example: "  lockstep source accept-rewind 9f2c1ab4c1c1a4d3a7f0f3ab7d6f8d4a3c2b1a09",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !commitHash.MatchString(args[0]) {
				return invalid(fmt.Errorf("hash %.64q; want the full name of the commit, 40 lower-case hexadecimal digits", args[0]))
			}
			return annotateSource(cmd.Context(), cmd.OutOrStdout(), &flags, args[1:], v1alpha1.AnnotationAcceptRewind, args[0], "accepts "+args[0]+" once")
		},
	}
	flags.register(cmd)
	return cmd
}

// annotateSource sets an annotation of the named GitSource, or of the only one.
func annotateSource(ctx context.Context, out io.Writer, flags *clusterFlags, args []string, key, value, said string) error {
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
	return say(out, "gitsource/%s %s\n", source.Name, said)
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
		return nil, errors.New("there is no GitSource in namespace " + v1alpha1.Namespace)
	case 1:
		return &list.Items[0], nil
	}
	return nil, invalid(fmt.Errorf("there are %d Git sources; name one", len(list.Items)))
}
