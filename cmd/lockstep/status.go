// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// statusFlags are the flags of `lockstep status`.
type statusFlags struct {
	cluster clusterFlags
	watch   bool
	output  string
}

func newStatusCommand() *cobra.Command {
	var flags statusFlags
	cmd := &cobra.Command{
		Use:   "status [KIND/NAME]",
		Short: "Show sources, releases and pools, and what blocks them",
		Long: `Show sources, releases and pools, and what blocks them.

With --watch, status redraws in place on a terminal and prints one line per
change otherwise.`,
		Example: "  lockstep status\n  lockstep status --watch\n  lockstep status host/node-13\n  lockstep status -o yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := flags.cluster.client()
			if err != nil {
				return err
			}
			if flags.watch {
				return watchStatus(cmd.Context(), c, cmd.OutOrStdout(), args)
			}
			w, err := readObjects(cmd.Context(), c)
			if err != nil {
				return err
			}
			return printStatus(cmd.OutOrStdout(), &w, args, flags.output, time.Now())
		},
	}
	flags.cluster.register(cmd)
	cmd.Flags().BoolVarP(&flags.watch, "watch", "w", false, "show changes until interrupted")
	cmd.Flags().StringVarP(&flags.output, "output", "o", "", "json, yaml, wide or name")
	return cmd
}

// printStatus writes all objects, or the one that args name.
func printStatus(out io.Writer, w *objects, args []string, output string, now time.Time) error {
	objects := w.list()
	if len(args) == 1 {
		want, err := parseObjectArg(args[0])
		if err != nil {
			return err
		}
		obj, ok := w.find(want)
		if !ok {
			return fmt.Errorf("%s not found in namespace %s", objectArg(want), v1alpha1.Namespace)
		}
		objects = []client.Object{obj}
	}
	switch output {
	case "name":
		for _, obj := range objects {
			fmt.Fprintln(out, objectArg(obj))
		}
		return nil
	case "json", "yaml":
		return printObjects(out, objects, output)
	case "", "wide":
		view := &statusView{now: now, wide: output == "wide", colour: useColour(out)}
		if len(args) == 1 {
			_, err := io.WriteString(out, view.object(objects[0]))
			return err
		}
		_, err := io.WriteString(out, view.all(w))
		return err
	default:
		return invalid(fmt.Errorf("-o %s is not known: want json, yaml, wide or name", output))
	}
}

// printObjects writes the objects as one List, as kubectl does.
func printObjects(out io.Writer, objects []client.Object, output string) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	items := make([]any, 0, len(objects))
	for _, obj := range objects {
		kinds, _, err := scheme.ObjectKinds(obj)
		if err != nil {
			return fmt.Errorf("kind of %s: %w", objectArg(obj), err)
		}
		obj.GetObjectKind().SetGroupVersionKind(kinds[0])
		obj.SetManagedFields(nil)
		items = append(items, obj)
	}
	var doc any = map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	if len(items) == 1 {
		doc = items[0]
	}
	raw, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if output == "yaml" {
		if raw, err = yaml.JSONToYAML(raw); err != nil {
			return fmt.Errorf("encode: %w", err)
		}
	}
	_, err = fmt.Fprintln(out, strings.TrimRight(string(raw), "\n"))
	return err
}

// colourful reports whether out is a terminal and NO_COLOR isn't set.
func useColour(out io.Writer) bool {
	if os.Getenv("NO_COLOR") != "" {
		return false
	}
	return isTerminal(out)
}

func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// watchStatus shows the objects whenever they change, at most twice a second,
// until the context ends.
func watchStatus(ctx context.Context, c client.WithWatch, out io.Writer, args []string) error {
	changed, err := watchAll(ctx, c)
	if err != nil {
		return err
	}
	redraw := isTerminal(out)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	dirty, last, drawn := true, "", time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			dirty = true
		case <-tick.C:
			// A terminal shows ages: it is redrawn every second.
			if !dirty && (!redraw || time.Since(drawn) < time.Second) {
				continue
			}
			dirty, drawn = false, time.Now()
			text, err := snapshot(ctx, c, args, redraw)
			if err != nil {
				return err
			}
			if redraw {
				fmt.Fprint(out, "\x1b[H\x1b[2J"+text)
			} else {
				fmt.Fprint(out, newLines(last, text, time.Now()))
			}
			last = text
		}
	}
}

// snapshot renders the objects for watching: in full on a terminal, one line
// per object otherwise.
func snapshot(ctx context.Context, c client.Client, args []string, full bool) (string, error) {
	w, err := readObjects(ctx, c)
	if err != nil {
		return "", err
	}
	view := &statusView{now: time.Now(), colour: full && os.Getenv("NO_COLOR") == ""}
	if !full {
		return view.lines(&w), nil
	}
	if len(args) == 0 {
		return view.all(&w), nil
	}
	want, err := parseObjectArg(args[0])
	if err != nil {
		return "", err
	}
	obj, ok := w.find(want)
	if !ok {
		return "", fmt.Errorf("%s not found in namespace %s", objectArg(want), v1alpha1.Namespace)
	}
	return view.object(obj), nil
}

// newLines returns the lines of text that aren't in last, with the time.
func newLines(last, text string, now time.Time) string {
	old := map[string]bool{}
	for line := range strings.Lines(last) {
		old[line] = true
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !old[line] {
			b.WriteString(now.UTC().Format("15:04:05") + "  " + line)
		}
	}
	return b.String()
}

// watchAll reports changes of Lockstep's objects on the returned channel, which
// buffers one report.
func watchAll(ctx context.Context, c client.WithWatch) (<-chan struct{}, error) {
	changed := make(chan struct{}, 1)
	for _, list := range []client.ObjectList{
		&v1alpha1.GitSourceList{}, &v1alpha1.ClusterReleaseList{}, &v1alpha1.NodeOSList{}, &v1alpha1.HostList{}, &v1alpha1.TrustPolicyList{},
	} {
		w, err := c.Watch(ctx, list, client.InNamespace(v1alpha1.Namespace))
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", list, err)
		}
		go func() {
			defer w.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case _, open := <-w.ResultChan():
					select {
					case changed <- struct{}{}:
					default:
					}
					if !open {
						// The server ends watches regularly.
						if w = rewatch(ctx, c, list); w == nil {
							return
						}
					}
				}
			}
		}()
	}
	return changed, nil
}

// rewatch starts a new watch after a second, so that a server that refuses
// watches isn't flooded; nil when the context ended.
func rewatch(ctx context.Context, c client.WithWatch, list client.ObjectList) watch.Interface {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		if w, err := c.Watch(ctx, list, client.InNamespace(v1alpha1.Namespace)); err == nil {
			return w
		}
	}
}
