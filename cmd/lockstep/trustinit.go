// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
)

// trustProfile has the keys and roles of a new policy.
type trustProfile struct {
	// ssh are personal keys, pem keys for signing images and for recovery.
	ssh, pem []string
	roles    map[string]trust.Role
}

// role returns a role.
func role(threshold int, keys ...string) trust.Role {
	return trust.Role{Keys: keys, Threshold: threshold}
}

// delayed returns a recovery role.
func delayed(delay time.Duration, threshold int, keys ...string) trust.Role {
	return trust.Role{Keys: keys, Threshold: threshold, Delay: delay}
}

// profiles returns the policies that init offers.
func profiles() map[string]trustProfile {
	return map[string]trustProfile{
		"solo": {
			ssh: []string{"admin"}, pem: []string{"release", "vault"},
			roles: map[string]trust.Role{
				trust.RoleRoot: role(1, "admin"), trust.RoleRecovery: delayed(24*time.Hour, 1, "vault"),
				trust.RoleRelease: role(1, "release"), trust.RoleOS: role(1, "release"),
				trust.RoleGit: role(1, "admin"), trust.RoleOrder: role(1, "admin"),
				trust.RoleConfig: role(1, "admin"), trust.RoleWaiver: role(1, "admin"),
			},
		},
		"team": {
			ssh: []string{"admin-1", "admin-2", "admin-3"}, pem: []string{"release", "ci", "vault"},
			roles: map[string]trust.Role{
				trust.RoleRoot: role(2, "admin-1", "admin-2", "admin-3"), trust.RoleRecovery: delayed(24*time.Hour, 1, "vault"),
				trust.RoleRelease: role(2, "release", "ci"), trust.RoleOS: role(2, "release", "ci"),
				trust.RoleGit: role(1, "admin-1", "admin-2", "admin-3"), trust.RoleOrder: role(1, "admin-1", "admin-2", "admin-3"),
				trust.RoleConfig: role(1, "admin-1", "admin-2", "admin-3"), trust.RoleWaiver: role(2, "admin-1", "admin-2", "admin-3"),
			},
		},
		"regulated": {
			ssh: []string{"admin-1", "admin-2", "admin-3", "admin-4", "admin-5"},
			pem: []string{"release-1", "release-2", "ci", "vault-1", "vault-2", "vault-3"},
			roles: map[string]trust.Role{
				trust.RoleRoot:     role(3, "admin-1", "admin-2", "admin-3", "admin-4", "admin-5"),
				trust.RoleRecovery: delayed(72*time.Hour, 2, "vault-1", "vault-2", "vault-3"),
				trust.RoleRelease:  role(2, "release-1", "release-2", "ci"), trust.RoleOS: role(2, "release-1", "release-2", "ci"),
				trust.RoleGit:    role(1, "admin-1", "admin-2", "admin-3", "admin-4", "admin-5"),
				trust.RoleOrder:  role(2, "admin-1", "admin-2", "admin-3", "admin-4", "admin-5"),
				trust.RoleConfig: role(2, "admin-1", "admin-2", "admin-3", "admin-4", "admin-5"),
				trust.RoleWaiver: role(3, "admin-1", "admin-2", "admin-3", "admin-4", "admin-5"),
			},
		},
	}
}

// trustInit has the options of `trust init`.
type trustInit struct {
	profile, dir          string
	clusters, products    []string
	osProducts, sources   []string
	selfUpdate, gitImages []string
	validFor              time.Duration
	password              []byte
}

func newTrustInitCommand() *cobra.Command {
	var o trustInit
	var passwordFile string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create keys and a signed trust policy",
		Long: `Create keys and a signed trust policy.

Profiles: solo (1 of 1, and an offline recovery key), team (2 of 3 administrators,
2 of 2 release keys), regulated (3 of 5 administrators, 2 of 3 release keys, 2 of 3
recovery keys). Administrators have OpenSSH keys, which also sign commits; release
keys have cosign's format. Hand each private key to its holder and delete it here.

A password encrypts the private keys. It is read from --password-file, from the
environment (LOCKSTEP_KEY_PASSWORD or COSIGN_PASSWORD) or from the terminal.`,
		Example: `  lockstep trust init --profile solo --dir trust --cluster prod \
      --product platform=registry.example.com/platform/** --os-product platform-os=registry.example.com/platform/**`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.password, err = newKeyPassword(passwordFile); err != nil {
				return err
			}
			return o.run(cmd.OutOrStdout(), time.Now())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.profile, "profile", "solo", "solo, team or regulated")
	f.StringVar(&o.dir, "dir", "trust", "directory to create")
	f.StringSliceVar(&o.clusters, "cluster", nil, "name or pattern of clusters that the policy applies to; may be repeated")
	f.StringSliceVar(&o.products, "product", []string{"platform"}, "product of releases, NAME or NAME=IMAGES; may be repeated")
	f.StringSliceVar(&o.osProducts, "os-product", []string{"platform-os"}, "product of OS images, NAME or NAME=IMAGES; may be repeated")
	f.StringSliceVar(&o.sources, "source", nil, "URL prefix of Git sources that may be declared; may be repeated")
	f.StringSliceVar(&o.selfUpdate, "self-update", nil, "product that may contain Lockstep's own objects")
	f.StringSliceVar(&o.gitImages, "allow-git-payload", nil, "product that a signed Git tag may deliver without its own signature")
	f.DurationVar(&o.validFor, "valid-for", 365*24*time.Hour, "time until the policy expires")
	f.StringVar(&passwordFile, "password-file", "", "file with the password of the private keys")
	_ = cmd.MarkFlagRequired("cluster")
	return cmd
}

// run creates the directory: private keys, public keys, document, envelope.
func (o *trustInit) run(out io.Writer, now time.Time) error {
	p, ok := profiles()[o.profile]
	if !ok {
		return invalid(fmt.Errorf("profile %q isn't solo, team or regulated", o.profile))
	}
	if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(o.file("root.json")); err == nil {
		return invalid(fmt.Errorf("%s exists already: choose another directory", o.file("root.json")))
	}
	keys, document, err := o.document(p, now)
	if err != nil {
		return err
	}
	for name, k := range keys {
		if err := o.writeKey(name, k); err != nil {
			return err
		}
	}
	var signers []trust.SigningKey
	for _, name := range p.roles[trust.RoleRoot].Keys {
		signers = append(signers, keys[name])
	}
	sealed, err := trust.Seal(document, signers...)
	if err != nil {
		return invalid(err)
	}
	if err := errors.Join(files.Write(o.file("trust.yaml"), document, 0o644), files.Write(o.file("root.json"), sealed, 0o644)); err != nil {
		return err
	}
	if err := files.Write(o.file("trustpolicy.yaml"), policyManifest(sealed), 0o644); err != nil {
		return err
	}
	return o.report(out, p, now, trust.DigestOf(document))
}

func (o *trustInit) file(name string) string { return filepath.Join(o.dir, name) }

// document creates the keys and the document.
func (o *trustInit) document(p trustProfile, now time.Time) (map[string]*build.Key, []byte, error) {
	d := trust.Document{
		Name: "root", Version: 1, Expires: now.Add(o.validFor).UTC().Truncate(time.Second), Clusters: o.clusters,
		Roles: p.roles, Sources: o.sources, SelfUpdate: o.selfUpdate, AllowGitPayload: o.gitImages,
	}
	keys := map[string]*build.Key{}
	for _, name := range slices.Concat(p.ssh, p.pem) {
		k, entry, err := makeKey(name, slices.Contains(p.ssh, name))
		if err != nil {
			return nil, nil, err
		}
		keys[name], d.Keys = k, append(d.Keys, entry)
	}
	d.Rules = append(rulesFor(trust.KindRelease, trust.RoleRelease, o.products), rulesFor(trust.KindNodeOS, trust.RoleOS, o.osProducts)...)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(d), enc.Close()); err != nil {
		return nil, nil, fmt.Errorf("encode trust policy: %w", err)
	}
	return keys, b.Bytes(), nil
}

// makeKey creates a key and its entry in the document.
func makeKey(name string, person bool) (*build.Key, trust.Key, error) {
	if person {
		k, err := build.GenerateSSHKey()
		if err != nil {
			return nil, trust.Key{}, err
		}
		pub, err := k.PublicSSH()
		return k, trust.Key{Name: name, SSH: pub}, err
	}
	k, err := build.GenerateKey()
	if err != nil {
		return nil, trust.Key{}, err
	}
	pub, err := k.PublicPEM()
	return k, trust.Key{Name: name, PEM: string(pub)}, err
}

// rulesFor returns one rule per product, "NAME" or "NAME=IMAGES".
func rulesFor(kind, role string, products []string) []trust.Rule {
	var out []trust.Rule
	for _, p := range products {
		name, images, narrow := strings.Cut(p, "=")
		r := trust.Rule{Match: trust.Match{Kind: kind, Name: "*"}, Product: name, Role: role}
		if narrow {
			r.Images = []string{images}
		}
		out = append(out, r)
	}
	return out
}

// writeKey writes both halves of a key: NAME.key and NAME.pub.
func (o *trustInit) writeKey(name string, k *build.Key) error {
	private, err := k.PrivatePEM(o.password)
	if k.IsSSH() {
		private, err = k.PrivateSSH(name, o.password)
	}
	if err != nil {
		return err
	}
	public, err := k.PublicPEM()
	if err != nil {
		return err
	}
	if k.IsSSH() {
		line, err := k.PublicSSH()
		if err != nil {
			return err
		}
		public = []byte(line + " " + name + "\n")
	}
	return errors.Join(files.Write(o.file(name+".key"), private, 0o600), files.Write(o.file(name+".pub"), public, 0o644))
}

// policyManifest returns the TrustPolicy that delivers an envelope to a cluster.
func policyManifest(envelope []byte) []byte {
	indented := "    " + strings.ReplaceAll(strings.TrimRight(string(envelope), "\n"), "\n", "\n    ")
	return []byte("apiVersion: lockstep.dev/v1alpha1\nkind: TrustPolicy\nmetadata:\n  name: root\n  namespace: lockstep-system\n" +
		"spec:\n  envelope: |\n" + indented + "\n")
}

// report prints what was created and what to do with it.
func (o *trustInit) report(out io.Writer, p trustProfile, now time.Time, digest trust.Digest) error {
	if err := trustStatus(out, o.file("root.json"), now); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\ncreated %s: trust.yaml, root.json (signed), trustpolicy.yaml, and keys\n", o.dir)
	fmt.Fprintf(&b, "pin this digest when you install clusters and hosts:\n  %s\n", digest)
	fmt.Fprintf(&b, "store the recovery key offline and delete it here: %s\n", strings.Join(p.roles[trust.RoleRecovery].Keys, ", "))
	if len(o.password) == 0 {
		fmt.Fprintf(&b, "the private keys have no password: whoever reads %s can sign\n", o.file("*.key"))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// The environment variables that hold a key's password; the second is
// cosign's.
const (
	passwordVariable       = "LOCKSTEP_KEY_PASSWORD" //nolint:gosec // the name of a variable
	cosignPasswordVariable = "COSIGN_PASSWORD"       //nolint:gosec // the name of a variable
)

// keyPassword returns the password of an encrypted key.
func keyPassword(file string) ([]byte, error) {
	if p, ok := passwordFromEnvironment(); ok {
		return p, nil
	}
	return askPassword("password of " + file + ": ")
}

func passwordFromEnvironment() ([]byte, bool) {
	for _, name := range []string{passwordVariable, cosignPasswordVariable} {
		if p, ok := os.LookupEnv(name); ok {
			return []byte(p), true
		}
	}
	return nil, false
}

// askPassword reads a password from the terminal without echo.
func askPassword(prompt string) ([]byte, error) {
	fd := int(os.Stdin.Fd())
	if !term.IsTerminal(fd) {
		return nil, fmt.Errorf("no password: set %s, or run the command on a terminal", passwordVariable)
	}
	fmt.Fprint(os.Stderr, prompt)
	p, err := term.ReadPassword(fd)
	fmt.Fprintln(os.Stderr)
	return p, err
}

// newKeyPassword returns the password for new keys; nil without a file, a
// variable and a terminal.
func newKeyPassword(file string) ([]byte, error) {
	if file != "" {
		b, err := files.Read(file, build.MaxKeyFile)
		return bytes.TrimRight(b, "\r\n"), err
	}
	if p, ok := passwordFromEnvironment(); ok {
		return p, nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return nil, nil
	}
	first, err := askPassword("password for the new keys (empty: none): ")
	if err != nil || len(first) == 0 {
		return nil, err
	}
	second, err := askPassword("again: ")
	if err == nil && !bytes.Equal(first, second) {
		err = invalid(errors.New("the two passwords differ"))
	}
	return first, err
}
