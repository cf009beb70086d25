// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// waiveOptions are the options of `release waive`.
type waiveOptions struct {
	verifyFlags

	checks, keys   []string
	reason, output string
	expires        time.Duration
}

func newReleaseWaiveCommand() *cobra.Command {
	var o waiveOptions
	cmd := &cobra.Command{
		Use:   "waive IMAGE@DIGEST|PATH|WAIVER",
		Short: "Accept the risk of blocking preconditions of a release",
		Long: `Accept the risk of blocking preconditions of a release.

The output is a signed waiver for one cluster and one release, as a YAML field to
commit under spec of the ClusterRelease. With --output the envelope is written to a
file (WAIVER), to which others add their signatures with the same command. Without
--key a WAIVER is shown, and verified with --trust-policy: exit code 2 if it
doesn't count.

These preconditions may be waived: ` + strings.Join(precondition.Waivable(), ", ") + `.
Signatures, digests, revocations, floors and limits can't be waived.`,
		Example: `  lockstep release waive registry.example.com/platform/release@sha256:41be… --cluster prod \
      --check GiantHop --reason "tested on staging" --expires 72h --key admin-1.key --output waiver.json
  lockstep release waive waiver.json --key admin-2.key
  lockstep release waive waiver.json --trust-policy root.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), args[0], time.Now())
		},
	}
	o.register(cmd)
	cmd.Flags().StringSliceVar(&o.checks, "check", nil, "precondition to waive; may be repeated")
	cmd.Flags().StringVar(&o.reason, "reason", "", "reason, shown in the history")
	cmd.Flags().DurationVar(&o.expires, "expires", 72*time.Hour, "validity, at most 336h (14 days)")
	cmd.Flags().StringSliceVar(&o.keys, "key", nil, "private key file of the waiver role: cosign, PEM or OpenSSH; may be repeated")
	cmd.Flags().StringVar(&o.output, "output", "", "envelope to write (default: print the field)")
	return cmd
}

// run makes, signs or shows a waiver.
func (o *waiveOptions) run(ctx context.Context, out io.Writer, arg string, now time.Time) error {
	var signers []trust.SigningKey
	for _, file := range o.keys {
		k, err := loadKey(file)
		if err != nil {
			return err
		}
		signers = append(signers, k)
	}
	if !strings.Contains(arg, "@") && !isPath(arg) {
		return o.existing(out, arg, signers, now)
	}
	if len(signers) == 0 || o.cluster == "" || o.reason == "" || len(o.checks) == 0 {
		return invalid(errors.New("--key, --cluster, --check and --reason are required for a new waiver"))
	}
	w := trust.Waiver{
		Cluster: o.cluster, Product: o.product, Version: o.version, Checks: o.checks, Reason: o.reason,
		Issued: now.UTC().Truncate(time.Second), Expires: now.UTC().Add(o.expires).Truncate(time.Second),
	}
	if err := o.identify(ctx, arg, &w); err != nil {
		return err
	}
	raw, err := trust.SealWaiver(w, precondition.Waivable(), signers...)
	if err != nil {
		return invalid(err)
	}
	return o.write(out, o.output, raw)
}

// identify sets digest, product and version of the release.
func (o *waiveOptions) identify(ctx context.Context, arg string, w *trust.Waiver) error {
	if isPath(arg) {
		digest, err := build.TreeDigest(arg, verify.SignatureFile)
		if err != nil {
			return invalid(err)
		}
		opts, err := (&selectionFlags{}).options()
		if err != nil {
			return err
		}
		in, err := inspectPath(arg, opts)
		if err != nil {
			return err
		}
		return o.compare(w, digest, in.Product, in.Version)
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	defer client.Close()
	m, err := verify.Manifest(ctx, client, arg)
	if err != nil {
		return err
	}
	return o.compare(w, m.Digest, m.Annotations[verify.AnnotationProduct], m.Annotations[verify.AnnotationVersion])
}

// compare sets the release of a waiver; --product and --version must match.
func (o *waiveOptions) compare(w *trust.Waiver, digest trust.Digest, product, version string) error {
	if o.product != "" && o.product != product || o.version != "" && o.version != version {
		return invalid(fmt.Errorf("release is %s %s, --product and --version require %s %s",
			sanitize.Line(product), sanitize.Line(version), o.product, o.version))
	}
	w.Digest, w.Product, w.Version = digest, product, version
	return nil
}

// existing signs or shows the waiver in a file.
func (o *waiveOptions) existing(out io.Writer, file string, signers []trust.SigningKey, now time.Time) error {
	raw, err := files.Read(file, trust.MaxWaiver)
	if err != nil {
		return err
	}
	if len(signers) > 0 {
		if raw, err = trust.SignWaiver(raw, precondition.Waivable(), signers...); err != nil {
			return invalid(fmt.Errorf("%s: %w", file, err))
		}
		if err := o.write(out, file, raw); err != nil {
			return err
		}
		return printField(out, raw)
	}
	w, _, err := trust.OpenWaiver(raw)
	if err != nil {
		return invalid(fmt.Errorf("%s: %w", file, err))
	}
	state := "not verified"
	if o.policy != "" {
		accepted, err := loadTrust(o.policy, now)
		if err != nil {
			return err
		}
		t := trust.WaiverTarget{Cluster: w.Cluster, Product: w.Product, Version: w.Version, Digest: w.Digest}
		if o.cluster != "" {
			t.Cluster = o.cluster
		}
		_, signers, err := verify.Waiver(accepted.Document, t, raw, precondition.Waivable(), now)
		if err != nil {
			return invalid(err)
		}
		var names []string
		for _, s := range signers {
			names = append(names, s.String())
		}
		state = "signed by " + strings.Join(names, ", ")
	}
	if err := printf(out, "waiver of %s for %s %s in cluster %s  (%s)\n  digest   %s\n  reason   %s\n  expires  %s\n",
		sanitize.Line(strings.Join(w.Checks, ", ")), sanitize.Line(w.Product), sanitize.Line(w.Version), sanitize.Line(w.Cluster), state,
		sanitize.Line(w.Digest.String()), sanitize.Line(w.Reason), w.Expires.UTC().Format(time.RFC3339)); err != nil {
		return err
	}
	return printField(out, raw)
}

// write writes the envelope to a file, or prints the field without one.
func (o *waiveOptions) write(out io.Writer, file string, raw []byte) error {
	if file == "" {
		return printField(out, raw)
	}
	if err := files.Write(file, raw, 0o644); err != nil {
		return err
	}
	return printf(out, "%s: %d signatures\n", file, trust.CountSignatures(raw))
}

// printField prints a waiver as a field of a ClusterRelease's spec.
func printField(out io.Writer, raw []byte) error {
	text := strings.ReplaceAll(strings.TrimSpace(string(raw)), "\n", "\n      ")
	return printf(out, "  waivers:\n  - envelope: |\n      %s\n", text)
}
