// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
)

// maxTrustFile is the largest file that the trust commands read, in bytes.
const maxTrustFile = 512 << 10

// newTrustCommand returns `lockstep trust`.
func newTrustCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "Manage the trust policy",
		Long: `Manage the trust policy: the keys, roles and rules that decide who may sign what.

The policy is one document (trust.yaml) in a signed envelope (root.json). Clusters
and hosts pin the digest of the first version. A later version takes effect only if
the root roles of the previous and of the new version have signed it.`,
	}
	cmd.AddCommand(newTrustInitCommand(), newTrustSignCommand(), newTrustStatusCommand(), newTrustCheckCommand())
	return cmd
}

func newTrustSignCommand() *cobra.Command {
	var keys []string
	var output string
	cmd := &cobra.Command{
		Use:   "sign FILE",
		Short: "Sign a trust policy, or add a signature to an envelope",
		Long: `Sign a trust policy (YAML), or add a signature to an envelope (JSON).

A policy is written to a new envelope (--output). An envelope is signed in place and
keeps its signatures, so that several key holders can sign it in turn.`,
		Example: `  lockstep trust sign trust.yaml --key admin-1.key --output root.json
  lockstep trust sign root.json --key admin-2.key`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return signTrust(cmd.OutOrStdout(), args[0], output, keys)
		},
	}
	cmd.Flags().StringSliceVar(&keys, "key", nil, "private key file: cosign, PEM or OpenSSH; may be repeated")
	cmd.Flags().StringVar(&output, "output", "root.json", "envelope to write for a policy")
	_ = cmd.MarkFlagRequired("key")
	return cmd
}

// signTrust signs a document or an envelope with the keys in files.
func signTrust(out io.Writer, file, output string, keyFiles []string) error {
	raw, err := files.Read(file, maxTrustFile)
	if err != nil {
		return err
	}
	var signers []trust.SigningKey
	for _, f := range keyFiles {
		k, err := loadKey(f)
		if err != nil {
			return err
		}
		signers = append(signers, k)
	}
	var sealed []byte
	if isEnvelope(raw) {
		output = file
		sealed, err = trust.AddSignatures(raw, signers...)
	} else {
		sealed, err = trust.Seal(raw, signers...)
	}
	if err != nil {
		return invalid(fmt.Errorf("%s: %w", file, err))
	}
	if err := files.Write(output, sealed, 0o644); err != nil {
		return err
	}
	return trustStatus(out, output, time.Now())
}

func newTrustStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "status FILE",
		Short:   "Show the roles, keys and rules of a trust policy",
		Example: `  lockstep trust status root.json`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return trustStatus(cmd.OutOrStdout(), args[0], time.Now())
		},
	}
}

// trustStatus prints a document: whether its signatures suffice, then roles, keys
// and rules.
func trustStatus(out io.Writer, file string, now time.Time) error {
	raw, err := files.Read(file, maxTrustFile)
	if err != nil {
		return err
	}
	document, signed := raw, "not signed yet: lockstep trust sign "+file+" --key …"
	if isEnvelope(raw) {
		if document, err = trust.OpenUnverified(raw); err != nil {
			return invalid(err)
		}
		signed = "signed by its own root"
		if _, err := trust.Pin(raw, trust.DigestOf(document), now); err != nil {
			signed = err.Error()
		}
	}
	d, err := trust.Decode(document)
	if err != nil {
		return invalid(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s@%d  %s\n  %s\n", d.Name, d.Version, d.Digest(), signed)
	fmt.Fprintf(&b, "  clusters %s   expires %s (%s)\n\n", strings.Join(d.Clusters, ", "), d.Expires.UTC().Format(time.RFC3339), until(d.Expires, now))
	describeRoles(&b, d, now)
	describeRules(&b, d)
	_, err = out.Write(b.Bytes())
	return err
}

// describeRoles writes a table of roles and of keys.
func describeRoles(b io.Writer, d *trust.Document, now time.Time) {
	w := tabwriter.NewWriter(b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "ROLE\tNEEDS\tKEYS")
	for _, name := range d.RoleNames() {
		r := d.Roles[name]
		needs := fmt.Sprintf("%d of %d", r.Threshold, len(d.RoleKeys(name)))
		if r.Delay > 0 {
			needs += fmt.Sprintf(", after %s", r.Delay)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, needs, strings.Join(r.Keys, ", "))
	}
	fmt.Fprintln(w, "\nKEY\tKIND\tUSABLE\tFINGERPRINT")
	for _, k := range d.Keys {
		usable := "yes"
		switch {
		case d.KeyRevoked(k.Name):
			usable = "revoked"
		case !k.Covers(now):
			usable = "outside its window"
		case !k.NotAfter.IsZero():
			usable = "until " + k.NotAfter.UTC().Format(time.DateOnly)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", k.Name, k.Algorithm(), usable, k.Fingerprint())
	}
	_ = w.Flush() // into memory
}

// describeRules writes the rules.
func describeRules(b io.Writer, d *trust.Document) {
	fmt.Fprintln(b)
	for _, r := range d.Rules {
		from := ""
		if len(r.Images) > 0 {
			from = " from " + strings.Join(r.Images, " or ")
		}
		fmt.Fprintf(b, "%s %s: product %s%s needs %d of role %s\n",
			r.Match.Kind, r.Match.Name, r.Product, from, d.Roles[r.Role].Threshold, r.Role)
	}
	if len(d.Rules) == 0 {
		fmt.Fprintln(b, "no rules: every release and OS image is rejected")
	}
}

func newTrustCheckCommand() *cobra.Command {
	var current string
	cmd := &cobra.Command{
		Use:   "check ENVELOPE",
		Short: "Check whether an envelope is a valid successor",
		Long: `Check whether an envelope is a valid successor of the current one, as clusters
and hosts do. Exit code 2 if it isn't.`,
		Example: `  lockstep trust check root.v2.json --current root.json`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return checkTrust(cmd.OutOrStdout(), current, args[0], time.Now())
		},
	}
	cmd.Flags().StringVar(&current, "current", "", "current envelope")
	_ = cmd.MarkFlagRequired("current")
	return cmd
}

// checkTrust checks a successor.
func checkTrust(out io.Writer, current, next string, now time.Time) error {
	cur, err := loadTrust(current, now)
	if err != nil {
		return err
	}
	raw, err := files.Read(next, maxTrustFile)
	if err != nil {
		return err
	}
	got, err := trust.Accept(&cur, raw, now)
	switch {
	case err != nil:
		return invalid(err)
	case got.Pending != nil:
		return printf(out, "%s@%d takes effect at %s, signed by the recovery role (%s); the root can stop it until then\n",
			got.Pending.Document.Name, got.Pending.Document.Version, got.Pending.Effective.UTC().Format(time.RFC3339), strings.Join(got.Pending.SignedBy, ", "))
	case got.Document.Digest() == cur.Document.Digest():
		return printf(out, "%s@%d is already active\n", cur.Document.Name, cur.Document.Version)
	}
	return printf(out, "%s@%d takes effect immediately\n", got.Document.Name, got.Document.Version)
}

// loadTrust reads the current envelope; its own signatures must be valid.
func loadTrust(file string, now time.Time) (trust.Accepted, error) {
	raw, err := files.Read(file, maxTrustFile)
	if err != nil {
		return trust.Accepted{}, err
	}
	document, err := trust.OpenUnverified(raw)
	if err != nil {
		return trust.Accepted{}, invalid(fmt.Errorf("%s: %w", file, err))
	}
	got, err := trust.Pin(raw, trust.DigestOf(document), now)
	if err != nil {
		return trust.Accepted{}, invalid(fmt.Errorf("%s: %w", file, err))
	}
	return got, nil
}

// isEnvelope distinguishes an envelope from a document.
func isEnvelope(b []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) }

// until returns the distance of a time in days.
func until(t, now time.Time) string {
	days := int(t.Sub(now).Hours() / 24)
	if days < 0 {
		return fmt.Sprintf("%d days ago", -days)
	}
	return fmt.Sprintf("in %d days", days)
}

// loadKey reads a private key file; its password comes from the environment or
// the terminal.
func loadKey(file string) (*build.Key, error) {
	b, err := files.Read(file, build.MaxKeyFile)
	if err != nil {
		return nil, err
	}
	k, err := build.ParseKey(b, func() ([]byte, error) { return keyPassword(file) })
	if err != nil {
		return nil, invalid(fmt.Errorf("key %s: %w", file, err))
	}
	return k, nil
}

// explain returns the text of an error: a refusal in several lines, anything
// else as it is.
func explain(err error) string {
	if r, ok := errors.AsType[*trust.Refusal](err); ok {
		return r.Text()
	}
	return err.Error()
}
