// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/desired"
	"github.com/lockstep-dev/lockstep/sources/dir"
)

func newValidateCommand() *cobra.Command {
	var root, output string
	cmd := &cobra.Command{
		Use:   "validate PATH",
		Short: "Validate declared objects without a cluster",
		Long: `Validate declared objects without a cluster.

validate renders the kustomization, or reads the plain documents, at PATH as the
reconciler does. It rejects unknown fields, duplicate keys and objects, other kinds,
and what the CRDs of this version reject. It sends no requests.

Exit codes: 0 valid, 2 invalid, 1 PATH can't be read.`,
		Example: "  lockstep validate clusters/prod\n  lockstep validate --root . clusters/prod -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			state, err := validate(cmd.Context(), root, args[0])
			if err != nil {
				return err
			}
			return printState(cmd.OutOrStdout(), state, output)
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "directory that documents may refer to (default: the Git work tree of PATH, else PATH)")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or name")
	return cmd
}

// validate decodes the objects declared at path.
func validate(ctx context.Context, root, path string) (*desired.State, error) {
	root, inside, err := locate(root, path)
	if err != nil {
		return nil, err
	}
	ignored, err := ignoredBy(root)
	if err != nil {
		return nil, err
	}
	tree, err := dir.ReadWithout(ctx, root, sources.Limits{}, ignored)
	if err != nil {
		var reasoned interface{ Reason() string }
		if errors.As(err, &reasoned) && reasoned.Reason() != dir.ReasonFetchFailed {
			return nil, invalid(fmt.Errorf("%s: %w", root, err))
		}
		return nil, fmt.Errorf("read %s: %w", root, err)
	}
	decoder, err := desired.NewDecoder()
	if err != nil {
		return nil, err
	}
	state, err := decoder.Decode(ctx, desired.Request{Revision: sources.Revision{Ref: dir.Ref, Tree: tree.Sum()}, FS: tree, Path: inside})
	if err != nil {
		return nil, invalid(fmt.Errorf("%s is invalid:\n%w", path, err))
	}
	return state, nil
}

// ignoredBy returns a filter for the .gitignore files of a work tree: files that
// a commit wouldn't contain, such as build output, aren't read. Outside a work
// tree it filters nothing.
func ignoredBy(root string) (func(name string, isDir bool) bool, error) {
	if workTree(root) != root {
		return func(string, bool) bool { return false }, nil
	}
	patterns, err := gitignore.ReadPatterns(osfs.New(root), nil)
	if err != nil {
		return nil, fmt.Errorf("read the .gitignore files of %s: %w", root, err)
	}
	matcher := gitignore.NewMatcher(patterns)
	return func(name string, isDir bool) bool { return matcher.Match(strings.Split(name, "/"), isDir) }, nil
}

// locate returns the directory to read and the slash-separated path inside it.
func locate(root, path string) (string, string, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return "", "", err
	}
	if full, err = filepath.EvalSymlinks(full); err != nil {
		return "", "", fmt.Errorf("path: %w", err)
	}
	info, err := os.Stat(full)
	if err != nil {
		return "", "", fmt.Errorf("path: %w", err)
	}
	if root == "" {
		root = workTree(full)
	}
	if root == "" {
		if root = full; !info.IsDir() {
			root = filepath.Dir(full)
		}
	}
	if root, err = filepath.Abs(root); err != nil {
		return "", "", err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return "", "", fmt.Errorf("root: %w", err)
	}
	inside, err := filepath.Rel(root, full)
	if err != nil || inside == ".." || strings.HasPrefix(inside, ".."+string(filepath.Separator)) {
		return "", "", invalid(fmt.Errorf("%s isn't below --root %s", path, root))
	}
	return root, filepath.ToSlash(inside), nil
}

// workTree returns the nearest directory at or above path that has a .git, or
// "".
func workTree(path string) string {
	for at := path; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, ".git")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			return ""
		}
	}
}

// validated is one object as -o json prints it.
type validated struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	Hash string `json:"specHash"`
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
}

func printState(w io.Writer, state *desired.State, output string) error {
	switch output {
	case "json":
		list := make([]validated, 0, len(state.Objects))
		for _, o := range state.Objects {
			list = append(list, validated{o.Kind, o.Name, o.Hash, o.File, o.Line})
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"tree": state.Revision.Tree, "objects": list})
	case "name":
		for _, o := range state.Objects {
			if _, err := fmt.Fprintf(w, "%s/%s\n", strings.ToLower(o.Kind), o.Name); err != nil {
				return err
			}
		}
		return nil
	case "":
	default:
		return invalid(fmt.Errorf("output %q: want json or name", output))
	}
	if _, err := fmt.Fprintf(w, "valid: %d objects\n", len(state.Objects)); err != nil {
		return err
	}
	for _, o := range state.Objects {
		if _, err := fmt.Fprintf(w, "  %s/%s   %s\n", o.Kind, o.Name, o.File); err != nil {
			return err
		}
	}
	return nil
}
