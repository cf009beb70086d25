// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/health"
)

// pathPrefix marks a destination that is a folder of a Git repository.
const pathPrefix = "path:"

// registryFlags say how registries are reached.
type registryFlags struct {
	file      string
	plainHTTP bool
}

func (f *registryFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "registries", os.Getenv("LOCKSTEP_REGISTRIES"), "file with mirrors, CAs and credentials of registries")
	cmd.Flags().BoolVar(&f.plainHTTP, "allow-plain-http", false, "let hosts be reached over HTTP that the registries file marks plainHTTP")
}

// client returns a client. On a person's own machine registries on that
// machine and OCI layouts are allowed.
func (f *registryFlags) client() (*registry.Client, error) {
	cfg, err := registry.LoadConfig(f.file)
	if err != nil {
		return nil, invalid(err)
	}
	return registry.New(cfg, registry.Options{
		AllowLoopback: true, AllowLayouts: true, AllowPlainHTTP: f.plainHTTP, Now: time.Now, UserAgent: "lockstep/" + version,
	})
}

// newReleaseCommand returns `lockstep release`: making and looking at releases.
func newReleaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Build, sign, verify and show releases",
	}
	cmd.AddCommand(newReleaseBuildCommand(), newReleaseSignCommand(), newReleaseVerifyCommand(), newReleaseInspectCommand(),
		newReleaseGraphCommand(), newReleaseDiffCommand())
	return cmd
}

func newReleaseBuildCommand() *cobra.Command {
	var flags registryFlags
	var version string
	cmd := &cobra.Command{
		Use:   "build SOURCE [DESTINATION]",
		Short: "Render and pack a release, and push it",
		Long: `Render and pack a release, and push it.

SOURCE is a folder with release.yaml and a folder a component, each with a
kustomization or with plain manifests. Nothing is fetched from elsewhere and no
program is run. The same source gives the same digest. Every variant is checked,
whichever a cluster selects by profile, feature set and capabilities.

DESTINATION is host/repository[:tag], oci:DIR[:tag] for an OCI layout, or
path:DIR for a folder of a Git repository. Without one the release is built and
checked only. The last line of the output is the reference to sign.`,
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
	cmd.Flags().StringVar(&version, "version", "", "version in place of the one in release.yaml")
	return cmd
}

// buildRelease builds a release, checks it as each cluster would, and writes it.
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
		return invalid(fmt.Errorf("a cluster would refuse this release: %w", err))
	}
	for _, w := range checked.Warnings {
		if err := say(out, "warning: %s\n", sanitize.Line(w)); err != nil {
			return err
		}
	}
	if err := say(out, "%s %s: %d manifests in %d files\n", id.Product, id.Version, len(checked.Manifests), len(r.Files())); err != nil {
		return err
	}
	if dir, ok := strings.CutPrefix(destination, pathPrefix); ok {
		if err := build.WriteTree(dir, r); err != nil {
			return err
		}
		return say(out, "%s\n", dir)
	}
	if destination == "" {
		return nil
	}
	p, err := build.NewPublisher(client).PushRelease(ctx, destination, r)
	if err != nil {
		return err
	}
	return say(out, "%s\n", p.Reference())
}

// checkRelease refuses what a cluster would refuse of the release, whichever of
// its variants that selects: also health rules that don't compile, which would
// only be found when their objects were applied.
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
	return p, nil
}

// newOSCommand returns `lockstep os`: making OS images known to a registry.
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
		Short: "Push the image of an operating system",
		Long: `Push the image of an operating system: the bytes that are written to a slot.

DESTINATION is host/repository[:tag] or oci:DIR[:tag]. Product and version
become part of what is signed. The output is the reference to sign.`,
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
			return say(cmd.OutOrStdout(), "%s\n", p.Reference())
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&id.Product, "product", "", "product that the image is a version of")
	cmd.Flags().StringVar(&id.Version, "version", "", "semantic version")
	cmd.Flags().StringVar(&id.Channel, "channel", "", "channel, for people")
	_ = cmd.MarkFlagRequired("product")
	_ = cmd.MarkFlagRequired("version")
	return cmd
}

// isPath reports whether an argument is a folder on the disk rather than an
// image.
func isPath(arg string) bool {
	info, err := os.Stat(arg)
	return err == nil && info.IsDir()
}

// reference makes an image reference exact: a tag is resolved and the result
// said, a digest stays.
func reference(ctx context.Context, out io.Writer, client *registry.Client, image string) (string, error) {
	if strings.Contains(image, "@") {
		_, _, err := verify.ParseReference(image)
		return image, err
	}
	slash, colon := strings.LastIndex(image, "/"), strings.LastIndex(image, ":")
	if colon <= slash || image[:colon] == strings.TrimSuffix(registry.LayoutPrefix, ":") {
		return "", invalid(fmt.Errorf("%s has neither digest nor tag", image))
	}
	d, err := client.Resolve(ctx, image[:colon], image[colon+1:])
	if err != nil {
		return "", err
	}
	exact := image[:colon] + "@" + d.String()
	return exact, say(out, "%s is now %s\n", image, exact)
}
