// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// cosign is the cosign CLI at the path in the environment variable COSIGN. Its
// version must be that in go.mod.
type cosign struct {
	t        *testing.T
	path     string
	dir      string
	root     string
	password string
}

func newCosign(t *testing.T) *cosign {
	t.Helper()
	path := os.Getenv("COSIGN")
	if path == "" {
		t.Skip("COSIGN doesn't name the cosign CLI (go install github.com/sigstore/cosign/v2/cmd/cosign@v2.6.5)")
	}
	c := &cosign{t: t, path: path, dir: t.TempDir(), password: "correct horse"}
	c.root = filepath.Join(c.dir, "root.json")
	// With an empty root, which is sufficient for keys, the CLI uses no network.
	write(t, c.dir, "root.json", `{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`)
	return c
}

// run runs the CLI and reports whether it succeeded.
func (c *cosign) run(args ...string) bool {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), c.path, args...)
	cmd.Dir = c.dir
	cmd.Env = []string{"COSIGN_PASSWORD=" + c.password, "HOME=" + c.dir, "PATH=/nonexistent"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Logf("cosign %q: %v\n%s", args, err, out)
	}
	return err == nil
}

// verifies reports whether the CLI finds a valid signature in the format.
func (c *cosign) verifies(p build.Published, pub string, format build.Format) bool {
	args := []string{"verify", "--key", pub, "--insecure-ignore-tlog=true", "--trusted-root", c.root}
	if format == build.Bundle {
		args = append(args, "--new-bundle-format")
	}
	return c.run(append(args, p.Reference())...)
}

func TestPeerCosignVerifiesOurSignatures(t *testing.T) {
	c := newCosign(t)
	inBoth(t, func(e *env, format build.Format) {
		t := e.t
		p := e.release("1.4.2")
		e.sign(p, "a", format)
		for _, key := range []string{"a", "b"} {
			pem, err := e.keys[key].PublicPEM()
			if err != nil {
				t.Fatal(err)
			}
			write(t, c.dir, key+".pub", string(pem))
		}
		if !c.verifies(p, filepath.Join(c.dir, "a.pub"), format) {
			t.Error("cosign doesn't verify our signature")
		}
		if c.verifies(p, filepath.Join(c.dir, "b.pub"), format) {
			t.Error("cosign verifies it with another key")
		}
	})
}

func TestPeerSignaturesOfCosignAreVerified(t *testing.T) {
	c := newCosign(t)
	if !c.run("generate-key-pair") {
		t.Fatal("cosign generates no key")
	}
	private, err := os.ReadFile(filepath.Join(c.dir, "cosign.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := build.ParseKey(private, func() ([]byte, error) { return []byte(c.password), nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := build.ParseKey(private, func() ([]byte, error) { return []byte("wrong"), nil }); err == nil {
		t.Error("the key was read with a wrong password")
	}
	sign := func(p build.Published, format build.Format) bool {
		args := []string{"sign", "--key", "cosign.key", "--tlog-upload=false", "--yes"}
		if format == build.Bundle {
			args = append(args, "--new-bundle-format")
		}
		return c.run(append(args, p.Reference())...)
	}
	inBoth(t, func(e *env, format build.Format) {
		t := e.t
		p := e.release("1.4.2")
		if !sign(p, format) {
			t.Fatal("cosign doesn't sign")
		}
		e.want(trust.WrongAuthority, verify.Request{Image: p.Reference()})
		e.keys["a"] = key
		e.doc = document(t, e.keys, 1, "")
		e.want("", verify.Request{Image: p.Reference()})
	})
	t.Run("beside our own signatures", func(t *testing.T) {
		e := newEnv(t, ggcr.WithReferrersSupport(true))
		p := e.release("1.4.2")
		e.sign(p, "b")
		if !sign(p, build.Legacy) || !sign(p, build.Bundle) {
			t.Fatal("cosign doesn't sign")
		}
		e.keys["a"] = key
		e.doc = document(t, e.keys, 2, "")
		e.want("", verify.Request{Image: p.Reference()})
	})
}

func TestPeerCosignReadsOurKeys(t *testing.T) {
	c := newCosign(t)
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	raw, err := e.keys["a"].PrivatePEM([]byte(c.password))
	if err != nil {
		t.Fatal(err)
	}
	write(t, c.dir, "ours.key", string(raw))
	if !c.run("sign", "--key", "ours.key", "--tlog-upload=false", "--yes", p.Reference()) {
		t.Fatal("cosign doesn't sign with our key")
	}
	e.want("", verify.Request{Image: p.Reference()})
}

func TestPeerAnAttestationByCosignIsNotASignature(t *testing.T) {
	c := newCosign(t)
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	raw, err := e.keys["a"].PrivatePEM([]byte(c.password))
	if err != nil {
		t.Fatal(err)
	}
	write(t, c.dir, "ours.key", string(raw))
	write(t, c.dir, "predicate.json", "{}")
	if !c.run("attest", "--key", "ours.key", "--tlog-upload=false", "--new-bundle-format", "--yes",
		"--type", "https://example.com/scan", "--predicate", "predicate.json", p.Reference()) {
		t.Fatal("cosign doesn't attest")
	}
	e.want(trust.Unsigned, verify.Request{Image: p.Reference()})
}
