// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// gitKey is an SSH key of the git role.
const gitKey = `- name: admin
  ssh: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ0XkVSi4GNkGgAIzT0GZ6hVVAhUlKFGNbLr9fZGvl2
`

// payloadPath writes a release as a payload path and returns the directory above it.
func payloadPath(e *env) string {
	e.t.Helper()
	src, dir := e.t.TempDir(), e.t.TempDir()
	write(e.t, src, "release.yaml", "product: platform\nversion: 1.4.2\ncomponents: [{name: web, runLevel: 10}]\n")
	write(e.t, src, "web/cm.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, namespace: web}\n")
	r, err := build.Build(src, "")
	if err != nil {
		e.t.Fatal(err)
	}
	if err := build.WriteTree(filepath.Join(dir, "releases", "a"), r); err != nil {
		e.t.Fatal(err)
	}
	return dir
}

// signPath signs the payload path in dir.
func signPath(e *env, dir, key string) {
	e.t.Helper()
	p := filepath.Join(dir, "releases", "a")
	d, err := build.TreeDigest(p, verify.SignatureFile)
	if err != nil {
		e.t.Fatal(err)
	}
	old, err := os.ReadFile(filepath.Join(p, verify.SignatureFile))
	if err != nil && !os.IsNotExist(err) {
		e.t.Fatal(err)
	}
	raw, err := build.SignTree(d, old, e.keys[key])
	if err != nil {
		e.t.Fatal(err)
	}
	write(e.t, p, verify.SignatureFile, string(raw))
}

func checkPath(e *env, fsys fs.FS, c verify.Commit) (verify.Signed, error) {
	return e.verifier(verify.Limits{}).ReleasePath(e.t.Context(), verify.PathRequest{
		Request: verify.Request{Name: "platform", Version: "1.4.2"}, FS: fsys, Dir: "releases/a", Commit: c,
	})
}

func TestAPayloadPathIsVerifiedWithItsSignatureFile(t *testing.T) {
	e := newEnv(t)
	e.doc = document(t, e.keys, 2, "")
	dir := payloadPath(e)
	if _, err := checkPath(e, os.DirFS(dir), verify.Commit{}); trust.ReasonOf(err) != trust.Unsigned {
		t.Errorf("without a signature: %v", err)
	}
	signPath(e, dir, "a")
	if _, err := checkPath(e, os.DirFS(dir), verify.Commit{}); trust.ReasonOf(err) != trust.ThresholdNotMet {
		t.Errorf("with one of two: %v", err)
	}
	signPath(e, dir, "b")
	s, err := checkPath(e, os.DirFS(dir), verify.Commit{})
	if err != nil {
		t.Fatal(err)
	}
	files, ok := s.Tree()
	if !ok || s.Product() != "platform" || s.Version() != "1.4.2" || len(s.Evidence().Signers) != 2 {
		t.Fatalf("Signed is %+v", s)
	}
	if _, err := fs.Stat(files, "release-manifests/release-metadata"); err != nil {
		t.Error(err)
	}
	if _, err := fs.Stat(files, verify.SignatureFile); err == nil {
		t.Error("the signature file is part of the tree")
	}
	write(t, dir, "releases/a/release-manifests/0000_10_web_0001-more.yaml", "{}")
	if _, err := checkPath(e, os.DirFS(dir), verify.Commit{}); trust.ReasonOf(err) != trust.WrongDigest {
		t.Errorf("with an additional file: %v", err)
	}
}

func TestAPayloadPathSignedByAnUnknownKeyIsRefused(t *testing.T) {
	e := newEnv(t)
	dir := payloadPath(e)
	signPath(e, dir, "unknown")
	if _, err := checkPath(e, os.DirFS(dir), verify.Commit{}); trust.ReasonOf(err) != trust.WrongAuthority {
		t.Errorf("got %v", err)
	}
}

func TestASignedTagIsSufficientOnlyIfThePolicyAllowsIt(t *testing.T) {
	e := newEnv(t)
	dir := payloadPath(e)
	tag := verify.Commit{Mode: verify.ModeTag, Revision: "prod/v1@sha1:0123", Signer: "admin"}
	head := tag
	head.Mode = "head"
	other := tag
	other.Signer = "a"
	if _, err := checkPath(e, os.DirFS(dir), tag); trust.ReasonOf(err) != trust.Unsigned {
		t.Errorf("without allowGitPayload: %v", err)
	}
	e.doc = withGit(t, e, "allowGitPayload: [platform]\n")
	for name, c := range map[string]verify.Commit{"a commit": head, "a signer of another role": other, "no signature": {}} {
		if _, err := checkPath(e, os.DirFS(dir), c); trust.ReasonOf(err) != trust.Unsigned {
			t.Errorf("by %s: %v", name, err)
		}
	}
	s, err := checkPath(e, os.DirFS(dir), tag)
	if err != nil {
		t.Fatal(err)
	}
	if s.Evidence().Commit != tag.Revision || s.Evidence().Signers[0].Name != "admin" {
		t.Errorf("evidence is %s", s.Evidence().Summary())
	}
}

func TestT9APayloadPathContainsRegularFilesOnly(t *testing.T) {
	e := newEnv(t)
	files := fstest.MapFS{
		"releases/a/release-manifests/release-metadata": {Data: []byte(`{"name":"platform","version":"1.4.2"}`)},
		"releases/a/link": {Data: []byte("/etc/passwd"), Mode: fs.ModeSymlink},
	}
	if _, err := checkPath(e, files, verify.Commit{}); trust.ReasonOf(err) != trust.ForbiddenContent {
		t.Errorf("got %v", err)
	}
}
