// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/health"
)

// pathPrefix marks a destination that is a folder of a Git repository.
const pathPrefix = "path:"

// registryFlags configure access to registries.
type registryFlags struct {
	file      string
	outbound  outbound.Options
	plainHTTP bool
}

func (f *registryFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "registries", os.Getenv("LOCKSTEP_REGISTRIES"), "file with mirrors, CAs and credentials of registries")
	f.outbound.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&f.plainHTTP, "allow-plain-http", false, "insecure: use HTTP for hosts with plainHTTP in the registries file")
}

// client returns a client. On a user's machine loopback registries and OCI
// layouts are allowed.
func (f *registryFlags) client() (*registry.Client, error) {
	cfg, err := registry.LoadConfig(f.file)
	if err != nil {
		return nil, invalid(err)
	}
	via, err := f.outbound.Load()
	if err != nil {
		return nil, invalid(err)
	}
	return registry.New(cfg, registry.Options{
		Outbound: via, AllowLoopback: true, AllowLayouts: true, AllowPlainHTTP: f.plainHTTP, Now: time.Now, UserAgent: "lockstep/" + version,
	})
}

// newReleaseCommand returns `lockstep release`.
func newReleaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Build, sign, verify and inspect releases",
	}
	cmd.AddCommand(newReleaseBuildCommand(), newReleaseSignCommand(), newReleaseVerifyCommand(), newReleaseInspectCommand(),
		newReleaseGraphCommand(), newReleaseDiffCommand(), newReleaseWaiveCommand())
	return cmd
}

func newReleaseBuildCommand() *cobra.Command {
	var flags registryFlags
	var version string
	cmd := &cobra.Command{
		Use:   "build SOURCE [DESTINATION]",
		Short: "Render, pack and push a release",
		Long: `Render, pack and push a release.

SOURCE is a folder with release.yaml and one folder per component, each with a
kustomization or plain manifests. Remote bases aren't fetched and no plugins are
run. The digest is reproducible. All variants that clusters can select by profile,
feature set and capabilities are validated.

Types, list keys and namespaces of Kubernetes' own kinds are checked in the source
files. Namespaces of cluster-scoped objects are removed; objects without a namespace
get that of their component in release.yaml, or are rejected. Files without
manifests are ignored and listed.

DESTINATION is host/repository[:tag], oci:DIR[:tag] for an OCI layout, or
path:DIR for a folder of a Git repository. Without it the release is only built
and validated. The last line of the output is the reference to sign.`,
		Example: `  lockstep release build releases/platform registry.example.com/platform/release:1.4.2
  lockstep release build releases/site path:clusters/prod/site`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			destination := ""
			if len(args) == 2 {
				destination = args[1]
			}
			client, err := flags.client()
			if err != nil {
				return err
			}
			defer client.Close()
			return buildRelease(cmd.Context(), cmd.OutOrStdout(), client, args[0], version, destination)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&version, "version", "", "version (default: the one in release.yaml)")
	return cmd
}

// buildRelease builds a release, validates it and writes it.
func buildRelease(ctx context.Context, out io.Writer, client *registry.Client, source, version, destination string) error {
	r, err := build.Build(source, version)
	if err != nil {
		return invalid(err)
	}
	files, err := r.Tree()
	if err != nil {
		return invalid(err)
	}
	id := r.Identity()
	checked, err := checkRelease(files)
	if err != nil {
		return invalid(fmt.Errorf("validate release: %s", r.InSource(err.Error())))
	}
	for _, w := range append(r.Warnings(), checked.Warnings...) {
		if err := printf(out, "warning: %s\n", sanitize.Clip(r.InSource(w), 512)); err != nil {
			return err
		}
	}
	if err := printIgnored(out, r.Ignored()); err != nil {
		return err
	}
	if err := printf(out, "%s %s: %d manifests in %d files\n", id.Product, id.Version, len(checked.Manifests), len(r.Files())); err != nil {
		return err
	}
	if dir, ok := strings.CutPrefix(destination, pathPrefix); ok {
		if err := build.WriteTree(dir, r); err != nil {
			return err
		}
		return printf(out, "%s\n", dir)
	}
	if destination == "" {
		return nil
	}
	p, err := build.NewPublisher(client).PushRelease(ctx, destination, r)
	if err != nil {
		return err
	}
	return printf(out, "%s\n", p.Reference())
}

// printIgnored lists the files of the source that contain no manifests.
func printIgnored(out io.Writer, names []string) error {
	const shown = 10
	if len(names) == 0 {
		return nil
	}
	list := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return printf(out, "ignored %d files without manifests: %s\n", len(names), sanitize.Clip(list, 2048))
}

// checkRelease validates all variants of the release as a cluster would: health
// rules, which a cluster compiles only when it applies their objects, and the order
// of an update, which blocks only clusters that don't have the objects yet. CVO's
// payloads rely on objects of earlier versions, so their order is a warning.
func checkRelease(files fs.FS) (*payload.Payload, error) {
	p, err := payload.Check(files)
	if err != nil {
		return nil, err
	}
	for i := range p.Manifests {
		m := &p.Manifests[i]
		if m.Health == "" {
			continue
		}
		if err := health.Validate(m.Health); err != nil {
			return nil, fmt.Errorf("%s:%d (document %d): %s: annotation %s: %w", m.File, m.Line, m.Document, m.ID, payload.AnnotationHealth, err)
		}
	}
	var orders payload.Problems
	for _, problem := range taskgraph.CheckOrder(p.Manifests, payload.Updating, p.CVO, nil) {
		if p.CVO {
			p.Warnings = append(p.Warnings, problem.Message)
			continue
		}
		orders.Add(errors.New(problem.Message))
	}
	return p, orders.Err()
}

// newOSCommand returns `lockstep os`.
func newOSCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "os",
		Short: "Push, sign and verify operating system images",
	}
	cmd.AddCommand(newOSBuildCommand(), newOSSignCommand(), newOSVerifyCommand())
	return cmd
}

func newOSBuildCommand() *cobra.Command {
	var flags registryFlags
	var id build.Identity
	cmd := &cobra.Command{
		Use:   "build FILE DESTINATION",
		Short: "Push an operating system image",
		Long: `Push an operating system image: the bytes that are written to a slot.

DESTINATION is host/repository[:tag] or oci:DIR[:tag]. The signature covers product
and version. The output is the reference to sign.`,
		Example: `  lockstep os build --product platform-os --version 2.1.0 os.img registry.example.com/platform/os:2.1.0`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := flags.client()
			if err != nil {
				return err
			}
			defer client.Close()
			p, err := build.NewPublisher(client).PushOS(cmd.Context(), args[1], id, args[0])
			if err != nil {
				return err
			}
			return printf(cmd.OutOrStdout(), "%s\n", p.Reference())
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&id.Product, "product", "", "product of the image")
	cmd.Flags().StringVar(&id.Version, "version", "", "semantic version")
	cmd.Flags().StringVar(&id.Channel, "channel", "", "channel (informational)")
	_ = cmd.MarkFlagRequired("product")
	_ = cmd.MarkFlagRequired("version")
	return cmd
}

// isPath reports whether an argument is a local folder rather than an image.
func isPath(arg string) bool {
	info, err := os.Stat(arg)
	return err == nil && info.IsDir()
}

// reference resolves the tag of an image reference to a digest and prints the
// result.
func reference(ctx context.Context, out io.Writer, client *registry.Client, image string) (string, error) {
	if strings.Contains(image, "@") {
		_, _, err := verify.ParseReference(image)
		return image, err
	}
	slash, colon := strings.LastIndex(image, "/"), strings.LastIndex(image, ":")
	if colon <= slash || image[:colon] == strings.TrimSuffix(registry.LayoutPrefix, ":") {
		return "", invalid(fmt.Errorf("image %s has neither a digest nor a tag", image))
	}
	d, err := client.Resolve(ctx, image[:colon], image[colon+1:])
	if err != nil {
		return "", err
	}
	exact := image[:colon] + "@" + d.String()
	return exact, printf(out, "resolved %s to %s\n", image, exact)
}
