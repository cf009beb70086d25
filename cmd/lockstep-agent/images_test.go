// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/config/outbound/outboundtest"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agent"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/nodeos/tasks"
)

func TestImagesAreReadThroughTheProxyOfTheAgent(t *testing.T) {
	t.Setenv("NO_PROXY", "")
	address, caFile := outboundtest.NewServer(t, http.NotFoundHandler())
	proxy := outboundtest.NewProxy(t, address)
	cfg, err := parse([]string{
		"-sim-dir", t.TempDir(), "-state-dir", t.TempDir(), "-cluster-uid", "cluster", "-proxy", proxy.URL, "-ca-file", caFile,
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	_, client, err := newImages(cfg, machineConfig{log: zap.NewNop(), now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Manifest(t.Context(), outboundtest.Host+"/os", trust.Digest("sha256:"+strings.Repeat("a", 64)))
	if err == nil || !strings.Contains(err.Error(), "404 Not Found") || len(proxy.Seen()) == 0 {
		t.Errorf("the proxy saw %v: %v", proxy.Seen(), err)
	}
}

// source returns the agent's image source for the trust document of the env.
func source(t *testing.T, b *env) (*signedImages, string) {
	t.Helper()
	trusted, err := agent.OpenTrustStore(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	sealed, digest := b.envelope(1, "")
	if err := trusted.Pin(sealed, digest); err != nil {
		t.Fatal(err)
	}
	cfg := agentConfig{stateDir: t.TempDir(), insecure: insecureOptions{loopback: true}}
	images, client, err := newImages(cfg, machineConfig{trusted: trusted, log: zap.NewNop(), now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return images, filepath.Join(cfg.stateDir, "images")
}

func TestDownloadResumesAfterGoodBytesAndRestartsAfterBadOnes(t *testing.T) {
	b := newRegistryEnv(t)
	image := b.image(sim.Document{Version: "2.1.0", Padding: strings.Repeat("x", 100_000)}, true)
	content, err := os.ReadFile(filepath.Join(b.dir, "system-2.1.0.json"))
	if err != nil {
		t.Fatal(err)
	}
	images, dir := source(t, b)
	verified, err := images.Verify(t.Context(), image.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if verified.Image.Version != "2.1.0" || verified.Image.Product != "platform-os" || verified.Image.Size != int64(len(content)) {
		t.Errorf("verified = %+v", verified.Image)
	}
	file := filepath.Join(dir, strings.TrimPrefix(verified.Image.ContentDigest, "sha256:"))
	bad := []byte(strings.Repeat("y", len(content)/2))
	for name, earlier := range map[string][]byte{
		"nothing": nil, "a good half": content[:len(content)/2], "a bad half": bad, "all of it": content,
		"too much": append(append([]byte{}, content...), bad...),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for path, data := range map[string][]byte{file: earlier, filepath.Join(dir, "older"): bad} {
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			stream, err := images.Fetch(t.Context(), verified)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(stream)
			if err != nil || string(got) != string(content) {
				t.Errorf("read %d bytes, %v; want the %d of the image", len(got), err, len(content))
			}
			if err := stream.Close(); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("%v, %v are left", left, err)
			}
		})
	}
}

func TestFetchRequiresVerification(t *testing.T) {
	b := newRegistryEnv(t)
	image := b.image(sim.Document{Version: "2.1.0"}, true)
	images, _ := source(t, b)
	if _, err := images.Fetch(t.Context(), tasks.Verified{Image: image}); err == nil {
		t.Error("fetched")
	}
	unsigned := b.image(sim.Document{Version: "2.2.0"}, false)
	if _, err := images.Verify(t.Context(), unsigned.Ref); nodeos.ReasonOf(err, "") != "Unsigned" {
		t.Errorf("an unsigned image = %v", err)
	}
}
