// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// inspection is the result of `release inspect`.
type inspection struct {
	Reference  string              `json:"reference"`
	Digest     trust.Digest        `json:"digest,omitempty"`
	Product    string              `json:"product"`
	Version    string              `json:"version"`
	Channel    string              `json:"channel,omitempty"`
	Verified   bool                `json:"verified"`
	Evidence   *trust.Evidence     `json:"evidence,omitempty"`
	Signatures []verify.Claim      `json:"signatures,omitempty"`
	Problems   []string            `json:"problems,omitempty"`
	Hash       string              `json:"versionHash,omitempty"`
	RunLevels  []inspectedRunLevel `json:"runLevels,omitempty"`
	Layers     []inspectedLayer    `json:"layers,omitempty"`
	Previous   []string            `json:"previous,omitempty"`
	// MinimumVersion and MaxMinorHop limit the versions that can be updated.
	MinimumVersion string `json:"minimumVersion,omitempty"`
	MaxMinorHop    *int   `json:"maxMinorHop,omitempty"`
	// Capabilities are enabled by the selection.
	Capabilities []string        `json:"capabilities,omitempty"`
	Excluded     []inspectedSkip `json:"excluded,omitempty"`
	// NeverPruned are the objects with lockstep.dev/prune: disabled.
	NeverPruned []string `json:"neverPruned,omitempty"`
}

// inspectedSkip is a document that the selection excludes.
type inspectedSkip struct {
	Object string `json:"object"`
	Place  string `json:"place"`
	Reason string `json:"reason"`
	Detail string `json:"detail"`
}

// inspectedRunLevel is a run level with its components.
type inspectedRunLevel struct {
	Level      int              `json:"level"`
	Components []inspectedGroup `json:"components"`
}

// inspectedGroup is a component with its objects in order.
type inspectedGroup struct {
	Name    string   `json:"name"`
	Objects []string `json:"objects"`
}

// inspectedLayer is a layer of an image that was not opened.
type inspectedLayer struct {
	MediaType string       `json:"mediaType"`
	Digest    trust.Digest `json:"digest"`
	Size      int64        `json:"size"`
}

func newReleaseInspectCommand() *cobra.Command {
	var flags payloadFlags
	var output string
	cmd := &cobra.Command{
		Use:   "inspect IMAGE|PATH|SOURCE",
		Short: "Show the metadata, manifests and signatures of a release",
		Long: `Show the metadata, manifests and signatures of a release.

IMAGE is opened after verification with --trust-policy. Without that flag its
manifest and signatures are listed, unverified. A tag is resolved to a digest. PATH
is a payload path, SOURCE a folder with release.yaml. The selection flags work as
the fields of a ClusterRelease; excluded documents are counted, and listed with
-o json.`,
		Example: `  lockstep release inspect registry.example.com/platform/release:1.4.2
  lockstep release inspect registry.example.com/platform/release@sha256:41be… --trust-policy root.json -o json
  lockstep release inspect ./payload --profile self-managed-high-availability --capabilities v4.18`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return invalid(fmt.Errorf("output %q: want json", output))
			}
			opts, err := flags.options()
			if err != nil {
				return err
			}
			client, err := flags.client()
			if err != nil {
				return err
			}
			defer client.Close()
			var in inspection
			if isPath(args[0]) {
				in, err = inspectPath(args[0], opts)
			} else {
				in, err = inspectImage(cmd.Context(), cmd.ErrOrStderr(), client, &flags, args[0], opts)
			}
			if err != nil {
				return err
			}
			return in.write(cmd.OutOrStdout(), output)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "json (default: text)")
	return cmd
}

// inspectPath inspects a local folder; a source is built first.
func inspectPath(dir string, opts payload.LoadOptions) (inspection, error) {
	in := inspection{Reference: dir}
	files, err := folderTree(dir)
	if err != nil {
		return in, err
	}
	in.Digest = files.Digest()
	p, err := loaded(payload.LoadUnverified(files, opts))
	if err != nil {
		return in, err
	}
	in.add(p)
	return in, nil
}

// inspectImage inspects an image, which is opened only after verification.
func inspectImage(ctx context.Context, progress io.Writer, client *registry.Client, flags *payloadFlags, arg string, opts payload.LoadOptions) (inspection, error) {
	exact, err := reference(ctx, progress, client, arg)
	if err != nil {
		return inspection{}, err
	}
	m, err := verify.Manifest(ctx, client, exact)
	if err != nil {
		return inspection{}, err
	}
	in := inspection{
		Reference: exact, Digest: m.Digest,
		Product: sanitize.Line(m.Annotations[verify.AnnotationProduct]), Version: sanitize.Line(m.Annotations[verify.AnnotationVersion]),
	}
	for _, l := range m.Layers {
		in.Layers = append(in.Layers, inspectedLayer{sanitize.Line(l.MediaType), l.Digest, l.Size})
	}
	claims, problems, err := verify.List(ctx, client, exact, verify.Limits{})
	if err != nil {
		return in, err
	}
	in.Signatures = claims
	for _, p := range problems {
		in.Problems = append(in.Problems, sanitize.Line(p.Error()))
	}
	if flags.policy == "" {
		return in, nil
	}
	return in, in.open(ctx, client, flags, opts)
}

// open verifies the image and loads its content.
func (in *inspection) open(ctx context.Context, client *registry.Client, flags *payloadFlags, opts payload.LoadOptions) error {
	s, err := flags.verify(ctx, client, trust.KindRelease, in.Reference)
	if err != nil {
		return err
	}
	ev := s.Evidence()
	in.Verified, in.Evidence, in.Layers = true, &ev, nil
	var files fs.FS
	if files, err = image.New(client, image.Limits{}).Tree(ctx, s); err != nil {
		return err
	}
	p, err := loaded(payload.Load(s, files, opts))
	if err != nil {
		return err
	}
	in.add(p)
	return nil
}

// add copies the properties of a loaded payload.
func (in *inspection) add(p *payload.Payload) {
	in.Product, in.Version, in.Channel = p.Product, p.Version, p.Channel
	in.Previous, in.Hash, in.Capabilities = p.Previous, p.VersionHash, p.EnabledCapabilities
	in.MinimumVersion, in.MaxMinorHop = p.MinimumVersion, p.MaxMinorHop
	for _, s := range p.Skipped {
		in.Excluded = append(in.Excluded, inspectedSkip{
			sanitize.Line(s.ID.String()), sanitize.Line(fmt.Sprintf("%s:%d", s.File, s.Line)), s.Reason, sanitize.Line(s.Detail),
		})
	}
	for _, w := range p.Warnings {
		in.Problems = append(in.Problems, sanitize.Line(w))
	}
	for _, err := range p.ScopeErrors() {
		in.Problems = append(in.Problems, sanitize.Line(err.Error()))
	}
	for i := range p.Manifests {
		in.place(&p.Manifests[i])
	}
}

// place adds a manifest to its run level and component. Manifests are in order.
func (in *inspection) place(m *payload.Manifest) {
	if n := len(in.RunLevels); n == 0 || in.RunLevels[n-1].Level != m.RunLevel {
		in.RunLevels = append(in.RunLevels, inspectedRunLevel{Level: m.RunLevel})
	}
	l := &in.RunLevels[len(in.RunLevels)-1]
	if n := len(l.Components); n == 0 || l.Components[n-1].Name != m.Component {
		l.Components = append(l.Components, inspectedGroup{Name: m.Component})
	}
	c := &l.Components[len(l.Components)-1]
	c.Objects = append(c.Objects, sanitize.Line(m.ID.String()))
	if m.PruneDisabled {
		in.NeverPruned = append(in.NeverPruned, sanitize.Line(m.ID.String()))
	}
}

// write prints the inspection.
func (in *inspection) write(out io.Writer, format string) error {
	if format == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(in)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	in.head(w)
	for _, l := range in.RunLevels {
		fmt.Fprintf(w, "\nrun level %02d\n", l.Level)
		for _, c := range l.Components {
			fmt.Fprintf(w, "  %s\t%d objects\n", c.Name, len(c.Objects))
			for _, o := range c.Objects {
				fmt.Fprintf(w, "    %s\n", o)
			}
		}
	}
	return w.Flush()
}

// head writes the answer, the signatures and what was odd.
func (in *inspection) head(w io.Writer) {
	state := "not verified"
	if in.Verified {
		state = "verified under " + in.Evidence.Policy
	}
	fmt.Fprintf(w, "%s %s  (%s)\n%s\n", in.Product, in.Version, state, in.Reference)
	if in.Reference != "" && !strings.Contains(in.Reference, "@") {
		fmt.Fprintf(w, "digest %s\n", in.Digest)
	}
	if in.Hash != "" {
		fmt.Fprintf(w, "version hash %s\n", in.Hash)
	}
	if len(in.Previous) > 0 {
		fmt.Fprintf(w, "updates from %s\n", sanitize.Line(strings.Join(in.Previous, ", ")))
	}
	if in.MinimumVersion != "" {
		fmt.Fprintf(w, "minimum version %s\n", sanitize.Line(in.MinimumVersion))
	}
	if in.MaxMinorHop != nil {
		fmt.Fprintf(w, "max minor hop %d\n", *in.MaxMinorHop)
	}
	for _, l := range in.Layers {
		fmt.Fprintf(w, "layer\t%s\t%d bytes\t%s\n", l.Digest.Short(), l.Size, l.MediaType)
	}
	if in.Evidence != nil {
		for _, l := range in.Evidence.Lines() {
			fmt.Fprintf(w, "signed by\t%s\n", l)
		}
	}
	for _, s := range in.Signatures {
		fmt.Fprintf(w, "signature\t%s\t%s\t%s\t%s\n", s.Material.Short(), s.Format, s.Predicate, s.Hint)
	}
	if len(in.Capabilities) > 0 {
		fmt.Fprintf(w, "capabilities\t%s\n", sanitize.Line(strings.Join(in.Capabilities, ", ")))
	}
	reasons := map[string]int{}
	for _, s := range in.Excluded {
		reasons[s.Reason]++
	}
	for _, r := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(w, "excluded\t%s\t%d documents\n", r, reasons[r])
	}
	for _, o := range in.NeverPruned {
		fmt.Fprintf(w, "never pruned\t%s\n", o)
	}
	for _, p := range in.Problems {
		fmt.Fprintf(w, "note\t%s\n", p)
	}
}
