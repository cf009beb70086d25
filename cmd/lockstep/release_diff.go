// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
)

func newReleaseDiffCommand() *cobra.Command {
	var flags payloadFlags
	var output string
	cmd := &cobra.Command{
		Use:   "diff FROM TO",
		Short: "Show the differences between two releases",
		Long: `Show the differences between two releases by object and field.

FROM and TO are payload paths, source folders or images. Images are verified with
--trust-policy before they are opened. Values of Secrets are masked.`,
		Example: `  lockstep release diff releases/1.4.1 releases/1.4.2`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			before, err := flags.open(cmd.Context(), args[0])
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			after, err := flags.open(cmd.Context(), args[1])
			if err != nil {
				return fmt.Errorf("%s: %w", args[1], err)
			}
			changes := payload.Diff(before, after)
			switch output {
			case "":
				return writeChanges(cmd.OutOrStdout(), before, after, changes)
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(changes)
			default:
				return invalid(fmt.Errorf("output %q: want json", sanitize.Line(output)))
			}
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "json (default: text)")
	return cmd
}

// writeChanges prints the counts, then one line per object and field.
func writeChanges(w io.Writer, before, after *payload.Payload, changes []payload.Change) error {
	marks := map[payload.ChangeKind]string{payload.Added: "+", payload.Changed: "~", payload.Removed: "-"}
	count := map[payload.ChangeKind]int{}
	for _, c := range changes {
		count[c.Kind]++
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%s %s → %s   + %d   ~ %d   - %d   = %d\n", after.Product, before.Version, after.Version,
		count[payload.Added], count[payload.Changed], count[payload.Removed],
		len(after.Manifests)-count[payload.Added]-count[payload.Changed])
	for _, c := range changes {
		fmt.Fprintf(out, "%s %s\n", marks[c.Kind], sanitize.Line(c.Object.String()))
		for _, f := range c.Fields {
			fmt.Fprintf(out, "    %s: %s → %s\n", f.Path, cmp.Or(f.Old, "(absent)"), cmp.Or(f.New, "(absent)"))
		}
		if c.More > 0 {
			fmt.Fprintf(out, "    and %d more fields\n", c.More)
		}
	}
	return out.Flush()
}
