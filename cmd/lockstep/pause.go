// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// pauseFlags are shared by pause and resume.
type pauseFlags struct {
	cluster clusterFlags
	all     bool
	reason  string
}

func newPauseCommand() *cobra.Command {
	var flags pauseFlags
	cmd := &cobra.Command{
		Use:   "pause [KIND/NAME…] [--all] --reason TEXT",
		Short: "Pause sources, releases, pools or hosts",
		Long: `Pause sources, releases, pools or hosts until they are resumed.

A paused object starts nothing new; hosts in flight finish and running workloads
aren't touched. The pause is an annotation with your name, the time and the
reason: it survives commits and restarts, and every status shows it. A paused
host is held: rollouts skip it.`,
		Example: `  lockstep pause nodeos/workers --reason "network maintenance until 14:00"
  lockstep pause host/node-13 --reason "disk being replaced"
  lockstep pause --all --reason "incident"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if flags.reason == "" {
				return invalid(errors.New("--reason is required: status shows it to other users"))
			}
			return setPaused(cmd.Context(), cmd.OutOrStdout(), &flags, args, true)
		},
	}
	flags.cluster.register(cmd)
	cmd.Flags().BoolVar(&flags.all, "all", false, "select every GitSource, ClusterRelease and NodeOS")
	cmd.Flags().StringVar(&flags.reason, "reason", "", "reason that status shows")
	return cmd
}

func newResumeCommand() *cobra.Command {
	var flags pauseFlags
	cmd := &cobra.Command{
		Use:     "resume [KIND/NAME…] [--all]",
		Short:   "Resume paused objects",
		Example: "  lockstep resume nodeos/workers\n  lockstep resume --all",
		RunE: func(cmd *cobra.Command, args []string) error {
			return setPaused(cmd.Context(), cmd.OutOrStdout(), &flags, args, false)
		},
	}
	flags.cluster.register(cmd)
	cmd.Flags().BoolVar(&flags.all, "all", false, "select every paused object")
	return cmd
}

// setPaused pauses or resumes the named objects, or all.
func setPaused(ctx context.Context, out io.Writer, flags *pauseFlags, args []string, on bool) error {
	if flags.all == (len(args) > 0) {
		return invalid(errors.New("specify objects as KIND/NAME, or --all"))
	}
	c, err := flags.cluster.client()
	if err != nil {
		return err
	}
	objects, err := pauseTargets(ctx, c, flags.all, on, args)
	if err != nil {
		return err
	}
	if len(objects) == 0 {
		fmt.Fprintln(out, "no objects changed")
	}
	for _, obj := range objects {
		var value *string
		if on {
			text := sanitize.Line(fmt.Sprintf("%s (%s, %s)", flags.reason, user(), time.Now().UTC().Format(time.RFC3339)))
			value = &text
		}
		if err := annotate(ctx, c, obj, pauseAnnotation(obj), value); err != nil {
			return err
		}
		word := "resumed"
		if on {
			word = "paused"
		}
		fmt.Fprintf(out, "%s %s\n", objectArg(obj), word)
	}
	return nil
}

// pauseTargets resolves the arguments, or lists all objects whose pause has to
// change.
func pauseTargets(ctx context.Context, c client.Client, all, on bool, args []string) ([]client.Object, error) {
	if all {
		w, err := readObjects(ctx, c)
		if err != nil {
			return nil, err
		}
		return pauseAll(&w, on), nil
	}
	out := make([]client.Object, 0, len(args))
	for _, arg := range args {
		obj, err := parseObjectArg(arg)
		if err != nil {
			return nil, err
		}
		out = append(out, obj)
	}
	return out, nil
}

// pauseAll returns the objects to pause or to resume. A paused object keeps the
// reason that it was paused with.
func pauseAll(w *objects, on bool) []client.Object {
	var out []client.Object
	for _, obj := range w.list() {
		switch obj.(type) {
		case *v1alpha1.GitSource, *v1alpha1.ClusterRelease, *v1alpha1.NodeOS:
			if _, paused := obj.GetAnnotations()[v1alpha1.AnnotationPaused]; paused != on {
				out = append(out, obj)
			}
		}
	}
	return out
}

// pauseAnnotation returns the annotation: hosts are held, other objects paused.
func pauseAnnotation(obj client.Object) string {
	if _, ok := obj.(*v1alpha1.Host); ok {
		return v1alpha1.AnnotationHold
	}
	return v1alpha1.AnnotationPaused
}

// annotate sets one annotation by a merge patch, or removes it if value is nil.
func annotate(ctx context.Context, c client.Client, obj client.Object, key string, value *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		return fmt.Errorf("patch of %s: %w", objectArg(obj), err)
	}
	if err := c.Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("%s: %w", objectArg(obj), err)
	}
	return nil
}
