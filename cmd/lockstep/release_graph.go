// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
	"github.com/lockstep-dev/lockstep/payload/tree"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

func newReleaseGraphCommand() *cobra.Command {
	var flags payloadFlags
	var state, output string
	cmd := &cobra.Command{
		Use:   "graph IMAGE@DIGEST|PATH|SOURCE",
		Short: "Show the task graph of a release",
		Long: `Show the task graph of a release: the order in which it is applied.

PATH is a payload path and SOURCE a folder with release.yaml. Images are verified
with --trust-policy before they are opened.`,
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
			g := taskgraph.Build(p.Manifests, s, taskgraph.Order{Serial: p.CVO})
			switch output {
			case "":
				return g.WriteText(cmd.OutOrStdout())
			case "dot":
				return g.WriteDOT(cmd.OutOrStdout())
			default:
				return invalid(fmt.Errorf("output %q: want dot", sanitize.Line(output)))
			}
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&state, "state", payload.Updating.String(), "state of the sync worker: Initializing, Updating, RollingBack or Reconciling")
	cmd.Flags().StringVarP(&output, "output", "o", "", "dot (default: text)")
	return cmd
}

// parseState returns the state of that name.
func parseState(name string) (payload.State, error) {
	for _, s := range []payload.State{payload.Initializing, payload.Updating, payload.RollingBack, payload.Reconciling} {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, invalid(fmt.Errorf("state %q: want Initializing, Updating, RollingBack or Reconciling", sanitize.Line(name)))
}

// folderTree returns the files of a payload path, or of a source after a build.
func folderTree(dir string) (*tree.Tree, error) {
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

// loaded marks an error of a load as invalid input.
func loaded(p *payload.Payload, err error) (*payload.Payload, error) {
	if err != nil {
		return nil, invalid(err)
	}
	return p, nil
}
