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
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

func newReleaseSignCommand() *cobra.Command {
	return signCommand("sign IMAGE@DIGEST|PATH", "Sign a release", `Sign a release: an image by its digest, or a payload path of a Git repository.

Images are signed as cosign 2.6 does, in its legacy format, as a bundle, or both
(the default). A path gets its signatures in release.sig.json. Signatures by
other keys stay.`, `  lockstep release sign registry.example.com/platform/release@sha256:41be… --key release.key
  lockstep release sign clusters/prod/site --key release.key`)
}

func newOSSignCommand() *cobra.Command {
	return signCommand("sign IMAGE@DIGEST", "Sign an operating system image",
		"Sign an operating system image by its digest, as cosign 2.6 does.",
		`  lockstep os sign registry.example.com/platform/os@sha256:8f1c… --key release.key`)
}

// signCommand returns a command that signs.
func signCommand(use, short, long, example string) *cobra.Command {
	var flags registryFlags
	var keys []string
	var format string
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			formats, err := build.Formats(format)
			if err != nil {
				return invalid(err)
			}
			for _, file := range keys {
				k, err := loadKey(file)
				if err != nil {
					return err
				}
				if isPath(args[0]) {
					err = signPath(cmd.OutOrStdout(), args[0], k)
				} else {
					err = signImage(cmd.Context(), cmd.OutOrStdout(), &flags, args[0], k, formats)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags.register(cmd)
	cmd.Flags().StringSliceVar(&keys, "key", nil, "private key file: cosign or PEM; may be repeated")
	cmd.Flags().StringVar(&format, "format", "both", "legacy, bundle or both")
	_ = cmd.MarkFlagRequired("key")
	return cmd
}

// signImage signs an image by digest.
func signImage(ctx context.Context, out io.Writer, flags *registryFlags, image string, k *build.Key, formats []build.Format) error {
	repo, digest, err := verify.ParseReference(image)
	if err != nil {
		return invalid(err)
	}
	client, err := flags.client()
	if err != nil {
		return err
	}
	defer client.Close()
	made, err := build.NewPublisher(client).Sign(ctx, repo, digest, k, formats)
	if err != nil {
		return err
	}
	if err := printf(out, "signed %s with %s\n", image, k.Fingerprint()); err != nil {
		return err
	}
	for i, d := range made {
		if err := printf(out, "  %s %s\n", formats[i], d); err != nil {
			return err
		}
	}
	return nil
}

// signPath signs a payload path.
func signPath(out io.Writer, dir string, k *build.Key) error {
	digest, err := build.TreeDigest(dir, verify.SignatureFile)
	if err != nil {
		return invalid(err)
	}
	file := filepath.Join(dir, verify.SignatureFile)
	old, err := files.Read(file, maxTrustFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	raw, err := build.SignTree(digest, old, k)
	if err != nil {
		return invalid(err)
	}
	if err := files.Write(file, raw, 0o644); err != nil {
		return err
	}
	return printf(out, "signed %s (%s) with %s in %s\n", dir, digest, k.Fingerprint(), file)
}

// verifyFlags have the policy, and the object and cluster to verify for.
type verifyFlags struct {
	registryFlags

	policy, name, source, cluster string
	product, version              string
}

func (f *verifyFlags) register(cmd *cobra.Command) {
	f.registryFlags.register(cmd)
	cmd.Flags().StringVar(&f.policy, "trust-policy", "", "envelope of the current trust policy (root.json)")
	cmd.Flags().StringVar(&f.name, "name", "", "name of the declaring object (default: check the rules of all names)")
	cmd.Flags().StringVar(&f.source, "source", "", "URL of the declaring source")
	cmd.Flags().StringVar(&f.cluster, "cluster", "", "name of the cluster (default: any)")
	cmd.Flags().StringVar(&f.product, "product", "", "required product")
	cmd.Flags().StringVar(&f.version, "version", "", "required version")
}

func (f *verifyFlags) request(image string) verify.Request {
	return verify.Request{Name: f.name, Source: f.source, Image: image, Product: f.product, Version: f.version}
}

// verifier returns a verifier under the policy in a file.
func (f *verifyFlags) verifier(client *registry.Client) (*verify.Verifier, error) {
	accepted, err := loadTrust(f.policy, time.Now())
	if err != nil {
		return nil, err
	}
	return verify.New(verify.Config{
		Registry: client, Cluster: f.cluster, Now: time.Now,
		Policy: func() *trust.Document { return accepted.Document },
	})
}

func newReleaseVerifyCommand() *cobra.Command {
	return verifyCommand(trust.KindRelease, "verify IMAGE@DIGEST|PATH", "Verify a release as clusters do",
		`  lockstep release verify registry.example.com/platform/release@sha256:41be… --trust-policy root.json`)
}

func newOSVerifyCommand() *cobra.Command {
	return verifyCommand(trust.KindNodeOS, "verify IMAGE@DIGEST", "Verify an operating system image as hosts do",
		`  lockstep os verify registry.example.com/platform/os@sha256:8f1c… --trust-policy root.json`)
}

// verifyCommand returns a command that verifies.
func verifyCommand(kind, use, short, example string) *cobra.Command {
	var flags verifyFlags
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example,
		Long: short + `.

It checks signatures, product, version, revocations and floors against the policy
in --trust-policy. The exit code is 2 if it is rejected; the error names what was
found, what is required and how to fix it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := flags.client()
			if err != nil {
				return err
			}
			defer client.Close()
			s, err := flags.verify(cmd.Context(), client, kind, args[0])
			if err != nil {
				return err
			}
			return describeSigned(cmd.OutOrStdout(), s)
		},
	}
	flags.register(cmd)
	_ = cmd.MarkFlagRequired("trust-policy")
	return cmd
}

// verify verifies an image or a payload path.
func (f *verifyFlags) verify(ctx context.Context, client *registry.Client, kind, arg string) (verify.Signed, error) {
	v, err := f.verifier(client)
	if err != nil {
		return verify.Signed{}, err
	}
	var s verify.Signed
	switch {
	case kind == trust.KindRelease && isPath(arg):
		root, err := os.OpenRoot(arg)
		if err != nil {
			return verify.Signed{}, err
		}
		defer func() { _ = root.Close() }()
		s, err = v.ReleasePath(ctx, verify.PathRequest{Request: f.request(""), FS: root.FS(), Dir: "."})
		if err != nil {
			return verify.Signed{}, invalid(err)
		}
	case kind == trust.KindRelease:
		s, err = v.Release(ctx, f.request(arg))
	default:
		s, err = v.OS(ctx, f.request(arg))
	}
	if err != nil && trust.ReasonOf(err) != trust.FetchFailed {
		return verify.Signed{}, invalid(err)
	}
	return s, err
}

// describeSigned prints the signers and the rules that they satisfy.
func describeSigned(out io.Writer, s verify.Signed) error {
	ev := s.Evidence()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s  %s\n  verified by policy %s\n", s.Product(), s.Version(), s.Reference(), ev.Policy)
	for _, l := range ev.Lines() {
		b.WriteString("  signed by " + l + "\n")
	}
	for _, r := range ev.Rules {
		b.WriteString("  rule " + r + "\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
