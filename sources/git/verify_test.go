// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"

	"github.com/lockstep-dev/lockstep/sources"
)

func TestHeadSignedBySSH(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.sshSign("admin-1")
	s.keygen("admin-2")
	s.commit(map[string]string{"a": "1"}, "-S", "-m", "fake\n\n-----BEGIN SSH SIGNATURE-----\nxx\n-----END SSH SIGNATURE-----")
	url := s.http()
	one, two := Authority{Name: "admin-1", SSH: s.pub("admin-1")}, Authority{Name: "admin-2", SSH: s.pub("admin-2")}

	snap := fetch(t, s.source(url, c, func(cfg *Config) { cfg.Authorities = signedBy(two, one) }), sources.Request{})
	if snap.Signer == nil || snap.Signer.Name != "admin-1" || snap.Signer.Format != "ssh" || !strings.HasPrefix(snap.Signer.Fingerprint, "SHA256:") {
		t.Errorf("signer %+v, want admin-1 by ssh", snap.Signer)
	}

	src := s.source(url, c, func(cfg *Config) { cfg.Authorities = signedBy(two) })
	_, err := src.Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonWrongAuthority, "admin-2")
	_, err = src.At(t.Context(), snap.Revision)
	wantReason(t, err, ReasonWrongAuthority)

	s.commit(map[string]string{"a": "2"}, "--no-gpg-sign")
	_, err = s.source(url, c, func(cfg *Config) { cfg.Authorities = signedBy(one) }).Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonUnsigned, "git commit -S")

	_, err = s.source(url, c, func(cfg *Config) { cfg.Authorities = signedBy() }).Fetch(t.Context(), sources.Request{})
	wantReason(t, err, "PolicyMissing")
}

func TestAPolicyChangeAppliesToAFetchedCommit(t *testing.T) {
	s, c := newServer(t), &clock{}
	s.sshSign("admin-1")
	s.keygen("admin-2")
	s.commit(map[string]string{"a": "1"}, "-S")
	list := []Authority{{Name: "admin-1", SSH: s.pub("admin-1")}}
	src := s.source(s.http(), c, func(cfg *Config) {
		cfg.Authorities = func(context.Context) ([]Authority, error) { return list, nil }
	})
	snap := fetch(t, src, sources.Request{})
	list = []Authority{{Name: "admin-2", SSH: s.pub("admin-2")}}
	_, err := src.Fetch(t.Context(), sources.Request{Accepted: snap.Revision})
	wantReason(t, err, ReasonWrongAuthority)
}

func TestHeadSignedByOpenPGP(t *testing.T) {
	s, c := newServer(t), &clock{}
	home := filepath.Join(s.home, "gpg")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	gpg := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "gpg", append([]string{"--homedir", home, "--batch", "--quiet"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("gpg %v: %v %s", args, err, out)
		}
		return string(out)
	}
	t.Cleanup(func() {
		_ = exec.CommandContext(context.WithoutCancel(t.Context()), "gpgconf", "--homedir", home, "--kill", "all").Run()
	})
	gpg("--passphrase", "", "--quick-generate-key", "admin <admin@example.com>", "ed25519", "sign", "never")
	public := gpg("--armor", "--export", "admin@example.com")
	s.run(s.work, "config", "user.signingkey", "admin@example.com")
	s.commit(map[string]string{"a": "1"}, "-S")
	url := s.http()
	c.advance(1) // the key has the time of the machine's clock
	now := func(cfg *Config) { cfg.Now = realNow }

	snap := fetch(t, s.source(url, c, now, func(cfg *Config) {
		cfg.Authorities = signedBy(Authority{Name: "admin", OpenPGP: public})
	}), sources.Request{})
	if snap.Signer == nil || snap.Signer.Name != "admin" || snap.Signer.Format != "openpgp" || len(snap.Signer.Fingerprint) != 40 {
		t.Errorf("signer %+v, want admin by openpgp", snap.Signer)
	}
	_, err := s.source(url, c, now, func(cfg *Config) {
		cfg.Authorities = signedBy(Authority{Name: "other", OpenPGP: pgpKey(t)})
	}).Fetch(t.Context(), sources.Request{})
	wantReason(t, err, ReasonWrongAuthority, "other")
}

func pgpKey(t *testing.T) string {
	t.Helper()
	e, err := openpgp.NewEntity("other", "", "other@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w, err := armor.Encode(&buf, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Serialize(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

// signedCommit returns a real commit signed by SSH, raw, and its authority.
func signedCommit(t *testing.T) (string, Authority) {
	t.Helper()
	s := newServer(t)
	s.sshSign("admin-1")
	h := s.commit(map[string]string{"a": "1"}, "-S")
	return s.run(s.work, "cat-file", "commit", h) + "\n", Authority{Name: "admin-1", SSH: s.pub("admin-1")}
}

func TestAnyChangeOfASignedCommitIsRefused(t *testing.T) {
	raw, auth := signedCommit(t)
	auths, err := parseAuthorities([]Authority{auth})
	if err != nil {
		t.Fatal(err)
	}
	judge := func(raw string) string {
		c, err := parseCommit([]byte(raw))
		if err != nil {
			return "malformed: " + err.Error()
		}
		if _, e := auths.verify(c, epoch); e != nil {
			return e.Reason() + ": " + e.Error()
		}
		return "good"
	}
	if got := judge(raw); got != "good" {
		t.Fatalf("the commit as it is: %s", got)
	}
	start := strings.Index(raw, "gpgsig ")
	end := strings.Index(raw, "\n\n")
	block := raw[start:end]
	tree := raw[:strings.IndexByte(raw, '\n')+1]
	zero := "tree " + strings.Repeat("0", 40) + "\n"
	for name, tc := range map[string]struct{ raw, want string }{
		"another message":                  {strings.Replace(raw, "a change", "a chance", 1), ReasonInvalidSignature},
		"another tree":                     {strings.Replace(raw, tree, zero, 1), ReasonInvalidSignature},
		"a second tree before":             {zero + raw, "malformed"},
		"a second tree after":              {strings.Replace(raw, "author ", zero+"author ", 1), "malformed"},
		"a tree among the further headers": {raw[:end] + "\n" + strings.TrimSpace(zero) + raw[end:], "malformed"},
		"a parent out of place":            {raw[:end] + "\nparent " + strings.Repeat("1", 40) + raw[end:], "malformed"},
		"two signature headers":            {raw[:end] + "\n" + block + raw[end:], "malformed: commit has more than one signature"},
		"two blocks in one header":         {raw[:end] + "\n " + strings.ReplaceAll(strings.TrimPrefix(block, "gpgsig "), "\n ", "\n ") + raw[end:], ReasonInvalidSignature + ": the signature header contains 2 blocks"},
		"a signature for another format":   {raw[:end] + "\ngpgsig-sha256 x" + raw[end:], "malformed"},
		"no signature":                     {raw[:start] + raw[end+1:], ReasonUnsigned},
		"an invalid signature":             {raw[:start] + "gpgsig -----BEGIN SSH SIGNATURE-----\n AAAA\n -----END SSH SIGNATURE-----" + raw[end:], ReasonInvalidSignature},
		"X.509":                            {raw[:start] + "gpgsig -----BEGIN SIGNED MESSAGE-----\n AAAA\n -----END SIGNED MESSAGE-----" + raw[end:], ReasonWrongAuthority},
	} {
		if got := judge(tc.raw); !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestASignatureForAnotherPurposeIsRejected(t *testing.T) {
	s := newServer(t)
	s.sshSign("admin-1")
	h := s.commit(map[string]string{"a": "1"}, "-S")
	raw := s.run(s.work, "cat-file", "commit", h) + "\n"
	c, err := parseCommit([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, c.payload, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", filepath.Join(s.home, "admin-1"), file).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	c.signature = s.read(file + ".sig")
	auths, err := parseAuthorities([]Authority{{Name: "admin-1", SSH: s.pub("admin-1")}})
	if err != nil {
		t.Fatal(err)
	}
	if _, e := auths.verify(c, epoch); e == nil || e.Reason() != ReasonInvalidSignature {
		t.Errorf("a signature in namespace file was accepted for a commit: %v", e)
	}
}

func smallRSA(t *testing.T, s *server) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "rsa", "-b", "1024", "-N", "", "-f", filepath.Join(s.home, "small")).CombinedOutput()
	if err != nil {
		t.Fatalf("ssh-keygen: %v %s", err, out)
	}
	return s.pub("small")
}

func TestAuthoritiesAreChecked(t *testing.T) {
	s := newServer(t)
	s.keygen("k")
	for name, a := range map[string]Authority{
		"no key":          {Name: "a"},
		"two keys":        {Name: "a", SSH: s.pub("k"), OpenPGP: "x"},
		"no name":         {SSH: s.pub("k")},
		"an invalid key":  {Name: "a", SSH: "ssh-ed25519 xx"},
		"options":         {Name: "a", SSH: `command="x" ` + s.pub("k")},
		"two lines":       {Name: "a", SSH: s.pub("k") + s.pub("k")},
		"invalid OpenPGP": {Name: "a", OpenPGP: "xx"},
		"a small RSA key": {Name: "a", SSH: smallRSA(t, s)},
	} {
		if err := CheckAuthorities([]Authority{a}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := CheckAuthorities(nil); err == nil {
		t.Error("an empty list was accepted")
	}
}
