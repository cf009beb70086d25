// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/foreign"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
	"github.com/lockstep-dev/lockstep/payload/tree"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// selectionFlags say which manifests of a payload are meant.
type selectionFlags struct {
	selection payload.Selection
}

func (f *selectionFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.selection.Profile, "profile", "", "include profile, such as self-managed-high-availability")
	cmd.Flags().StringVar(&f.selection.FeatureSet, "feature-set", "", "feature set; empty: the default one")
	cmd.Flags().StringVar(&f.selection.Baseline, "capabilities", payload.BaselineAll, "baseline of capabilities: All or None")
	cmd.Flags().StringSliceVar(&f.selection.Capabilities, "capability", nil, "capability besides the baseline; may be repeated")
}

// payloadFlags say how a payload is found, opened and selected from.
type payloadFlags struct {
	verifyFlags
	selectionFlags
}

func (f *payloadFlags) register(cmd *cobra.Command) {
	f.verifyFlags.register(cmd)
	f.selectionFlags.register(cmd)
}

func newReleaseGraphCommand() *cobra.Command {
	var flags payloadFlags
	var state, output string
	cmd := &cobra.Command{
		Use:   "graph IMAGE@DIGEST|PATH|SOURCE",
		Short: "Show the order in which a release is applied",
		Long: `Show the order in which a release is applied.

PATH is a payload path and SOURCE a folder with release.yaml. An image is opened
only if --trust names a policy that it satisfies.`,
		Example: `  lockstep release graph releases/1.4.2
  lockstep release graph ./payload --profile self-managed-high-availability -o dot | dot -Tsvg >graph.svg`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := parseState(state)
			if err != nil {
				return err
			}
			p, err := flags.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			g := taskgraph.Build(p.Manifests, s, taskgraph.Order{})
			switch output {
			case "":
				return g.WriteText(cmd.OutOrStdout())
			case "dot":
				return g.WriteDOT(cmd.OutOrStdout())
			default:
				return invalid(fmt.Errorf("output %q isn't dot", foreign.Line(output)))
			}
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&state, "state", payload.Updating.String(), "Initializing, Updating, RollingBack or Reconciling")
	cmd.Flags().StringVarP(&output, "output", "o", "", "dot, or text if empty")
	return cmd
}

// parseState returns the state of that name.
func parseState(name string) (payload.State, error) {
	for _, s := range []payload.State{payload.Initializing, payload.Updating, payload.RollingBack, payload.Reconciling} {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, invalid(fmt.Errorf("state %q isn't Initializing, Updating, RollingBack or Reconciling", foreign.Line(name)))
}

// open loads the payload of a folder, or of an image that verifies.
func (f *payloadFlags) open(ctx context.Context, arg string) (*payload.Payload, error) {
	opts := payload.LoadOptions{Selection: f.selection}
	if isPath(arg) {
		return openFolder(arg, opts)
	}
	if f.policy == "" {
		return nil, invalid(errors.New("an image is opened only if it's verified; name the policy that is in force by --trust"))
	}
	client, err := f.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	signed, err := f.verify(ctx, client, trust.KindRelease, arg)
	if err != nil {
		return nil, err
	}
	files, err := image.New(client, image.Limits{}).Tree(ctx, signed)
	if err != nil {
		return nil, err
	}
	return loaded(payload.Load(signed, files, opts))
}

// openFolder loads a payload path, or builds a source first.
func openFolder(dir string, opts payload.LoadOptions) (*payload.Payload, error) {
	files, err := folderTree(dir)
	if err != nil {
		return nil, err
	}
	return loaded(payload.LoadUnverified(files, opts))
}

// folderTree returns the files of a payload path or of a built source.
func folderTree(dir string) (fs.FS, error) {
	_, err := os.Stat(filepath.Join(dir, build.SourceFile))
	if err == nil {
		r, err := build.Build(dir, "")
		if err != nil {
			return nil, invalid(err)
		}
		return r.Tree()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	all, err := tree.Copy(root.FS(), ".", tree.Limits{})
	if err != nil {
		return nil, invalid(err)
	}
	return all.Without(verify.SignatureFile), nil
}

// loaded marks an error of a load as bad input.
func loaded(p *payload.Payload, err error) (*payload.Payload, error) {
	if err != nil {
		return nil, invalid(err)
	}
	return p, nil
}
