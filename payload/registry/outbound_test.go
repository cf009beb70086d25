// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/outbound/outboundtest"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// private is a registry under a private authority that only a proxy reaches.
type private struct {
	proxy  *outboundtest.Proxy
	caFile string
	digest trust.Digest
}

const repository = outboundtest.Host + "/platform"

func newPrivate(t *testing.T) *private {
	t.Helper()
	handler := ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0)))
	plain := httptest.NewServer(handler)
	t.Cleanup(plain.Close)
	img, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(plain.URL, "http://") + "/platform:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	hash, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := trust.ParseDigest(hash.String())
	if err != nil {
		t.Fatal(err)
	}
	address, caFile := outboundtest.NewServer(t, handler)
	return &private{proxy: outboundtest.NewProxy(t, address), caFile: caFile, digest: digest}
}

// manifest reads the image's manifest with the options of a program.
func (p *private) manifest(t *testing.T, o outbound.Options, cfg Config) error {
	t.Helper()
	via, err := o.Load()
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(cfg, Options{Outbound: via, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Manifest(t.Context(), repository, p.digest)
	return err
}

func TestARegistryBehindAProxyAndAPrivateAuthorityIsRead(t *testing.T) {
	t.Setenv("NO_PROXY", "")
	p := newPrivate(t)
	withPassword := strings.Replace(p.proxy.URL, "http://", "http://me:hunter2@", 1)
	if err := p.manifest(t, outbound.Options{Proxy: withPassword, CAFile: p.caFile}, Config{}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(p.proxy.Seen(), "CONNECT "+outboundtest.Host+":443") || !p.proxy.Authorized() {
		t.Errorf("the proxy saw %v, with its credentials: %v", p.proxy.Seen(), p.proxy.Authorized())
	}
	own := Config{Registries: []Host{{Host: outboundtest.Host, CA: p.caFile}}}
	if err := p.manifest(t, outbound.Options{Proxy: p.proxy.URL}, own); err != nil {
		t.Errorf("with the authority in the registries file: %v", err)
	}
	for name, tc := range map[string]struct {
		o    outbound.Options
		want string
	}{
		"an unknown authority":   {outbound.Options{Proxy: withPassword}, "certificate"},
		"a host without a proxy": {outbound.Options{Proxy: withPassword, NoProxy: outboundtest.Host, CAFile: p.caFile}, outboundtest.Host},
		"a proxy that is away":   {outbound.Options{Proxy: "http://me:hunter2@127.0.0.1:1", CAFile: p.caFile}, "proxyconnect"},
	} {
		err := p.manifest(t, tc.o, Config{})
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// The registry can't reach forbidden addresses through the proxy (trust boundary T8).
func TestT8AProxyIsNotAskedForForbiddenAddresses(t *testing.T) {
	proxy := outboundtest.NewProxy(t, "127.0.0.1:1")
	via, err := outbound.Options{Proxy: proxy.URL}.Load()
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{}, Options{Outbound: via, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, host := range []string{"169.254.169.254", "100.100.100.200", "[fe80::1]:443", "[fd00:ec2::254]"} {
		g, err := c.newGuard(Host{Host: host})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/v2/", nil)
		res, err := g.RoundTrip(r)
		if err == nil {
			_ = res.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "aren't allowed") {
			t.Errorf("%s: %v", host, err)
		}
	}
	if seen := proxy.Seen(); len(seen) != 0 {
		t.Errorf("the proxy saw %v", seen)
	}
}

// The system's certificates are read once per process, so the test runs itself.
func TestTheStandardVariablesAreUsed(t *testing.T) {
	const child = "LOCKSTEP_TEST_DIGEST"
	if digest := os.Getenv(child); digest != "" {
		if err := (&private{digest: trust.Digest(digest)}).manifest(t, outbound.Options{}, Config{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	p := newPrivate(t)
	run := func(env ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheStandardVariablesAreUsed$")
		cmd.Env = append([]string{child + "=" + p.digest.String(), "HOME=" + t.TempDir()}, env...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
	if out, err := run("HTTPS_PROXY="+p.proxy.URL, "SSL_CERT_FILE="+p.caFile); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run("HTTPS_PROXY=" + p.proxy.URL); err == nil || !strings.Contains(out, "certificate") {
		t.Errorf("without SSL_CERT_FILE: %v\n%s", err, out)
	}
	if out, err := run("HTTPS_PROXY="+p.proxy.URL, "SSL_CERT_FILE="+p.caFile, "NO_PROXY=example.com"); err == nil {
		t.Errorf("NO_PROXY is ignored:\n%s", out)
	}
}
