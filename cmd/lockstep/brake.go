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

// brakeFlags are shared by pause and resume.
type brakeFlags struct {
	cluster clusterFlags
	all     bool
	reason  string
}

func newPauseCommand() *cobra.Command {
	var flags brakeFlags
	cmd := &cobra.Command{
		Use:   "pause [KIND/NAME…] [--all] --reason TEXT",
		Short: "Hold objects where they are until they are resumed",
		Long: `pause sets a brake on declared objects: nothing new starts for them, hosts in
flight finish, and what runs goes on running. The brake is an annotation, so it
holds whatever Git says and whoever restarts; status shows it with your reason.
On a host it is a hold: rollouts leave that host out.`,
		Example: `  lockstep pause nodeos/workers --reason "network maintenance until 14:00"
  lockstep pause host/node-13 --reason "disk being replaced"
  lockstep pause --all --reason "incident"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if flags.reason == "" {
				return invalid(errors.New("--reason is missing: say why, others will read it in status"))
			}
			return brake(cmd.Context(), cmd.OutOrStdout(), &flags, args, true)
		},
	}
	flags.cluster.register(cmd)
	cmd.Flags().BoolVar(&flags.all, "all", false, "every GitSource, ClusterRelease and NodeOS")
	cmd.Flags().StringVar(&flags.reason, "reason", "", "why, in words for those who read status")
	return cmd
}

func newResumeCommand() *cobra.Command {
	var flags brakeFlags
	cmd := &cobra.Command{
		Use:     "resume [KIND/NAME…] [--all]",
		Short:   "Release the brake that pause set",
		Example: "  lockstep resume nodeos/workers\n  lockstep resume --all",
		RunE: func(cmd *cobra.Command, args []string) error {
			return brake(cmd.Context(), cmd.OutOrStdout(), &flags, args, false)
		},
	}
	flags.cluster.register(cmd)
	cmd.Flags().BoolVar(&flags.all, "all", false, "everything that is paused")
	return cmd
}

// brake sets or releases the brake of the named objects, or of all.
func brake(ctx context.Context, out io.Writer, flags *brakeFlags, args []string, on bool) error {
	if flags.all == (len(args) > 0) {
		return invalid(errors.New("name objects as KIND/NAME, or give --all"))
	}
	c, err := flags.cluster.client()
	if err != nil {
		return err
	}
	objects, err := brakeTargets(ctx, c, flags.all, on, args)
	if err != nil {
		return err
	}
	if len(objects) == 0 {
		fmt.Fprintln(out, "nothing to do: all objects are as wanted")
	}
	for _, obj := range objects {
		var value *string
		if on {
			text := sanitize.Line(fmt.Sprintf("%s (%s, %s)", flags.reason, whoami(), time.Now().UTC().Format(time.RFC3339)))
			value = &text
		}
		if err := annotate(ctx, c, obj, brakeAnnotation(obj), value); err != nil {
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

// brakeTargets resolves the arguments, or lists all objects that can have the
// brake and aren't as wanted yet.
func brakeTargets(ctx context.Context, c client.Client, all, on bool, args []string) ([]client.Object, error) {
	if all {
		w, err := readWorld(ctx, c)
		if err != nil {
			return nil, err
		}
		return brakeAll(&w, on), nil
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

// brakeAll returns the objects whose brake is to be set or released when all
// are meant. One that is paused already keeps its reason: whoever paused it
// will look for it.
func brakeAll(w *world, on bool) []client.Object {
	var out []client.Object
	for _, obj := range w.objects() {
		switch obj.(type) {
		case *v1alpha1.GitSource, *v1alpha1.ClusterRelease, *v1alpha1.NodeOS:
			if _, paused := obj.GetAnnotations()[v1alpha1.AnnotationPaused]; paused != on {
				out = append(out, obj)
			}
		}
	}
	return out
}

// brakeAnnotation is the brake's name: a host is held, all else is paused.
func brakeAnnotation(obj client.Object) string {
	if _, ok := obj.(*v1alpha1.Host); ok {
		return v1alpha1.AnnotationHold
	}
	return v1alpha1.AnnotationPaused
}

// annotate sets one annotation, or removes it where value is nil, by a merge
// patch that touches nothing else.
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
