// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-dev/lockstep/config/trust"
)

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

const (
	goodDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	descriptor = `{"mediaType":"x","digest":"` + goodDigest + `","size":1}`
)

func TestT8AmbiguousManifestsAreRejected(t *testing.T) {
	for name, tc := range map[string]struct {
		body, served string
		ok           bool
	}{
		"a manifest":                 {`{"mediaType":"` + TypeOCIManifest + `","config":` + descriptor + `,"layers":[` + descriptor + `]}`, TypeOCIManifest + "; charset=utf-8", true},
		"a manifest without a type":  {`{"layers":[]}`, TypeDockerManifest, true},
		"an index":                   {`{"mediaType":"` + TypeOCIIndex + `","manifests":[` + descriptor + `]}`, TypeOCIIndex, true},
		"both kinds of content":      {`{"mediaType":"` + TypeOCIManifest + `","layers":[],"manifests":[]}`, TypeOCIManifest, false},
		"an index with a config":     {`{"mediaType":"` + TypeOCIIndex + `","config":` + descriptor + `,"manifests":[]}`, TypeOCIIndex, false},
		"an index called a manifest": {`{"manifests":[]}`, TypeOCIManifest, false},
		"a manifest called an index": {`{"layers":[]}`, TypeOCIIndex, false},
		"header and body differ":     {`{"mediaType":"` + TypeOCIManifest + `","layers":[]}`, TypeOCIIndex, false},
		"an unknown type":            {`{"mediaType":"text/html","layers":[]}`, "text/html", false},
		"no type at all":             {`{"layers":[]}`, "", false},
		"foreign layers":             {`{"layers":[{"mediaType":"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip","digest":"` + goodDigest + `"}]}`, TypeOCIManifest, false},
		"descriptors with urls":      {`{"layers":[{"mediaType":"x","digest":"` + goodDigest + `","urls":["https://evil"]}]}`, TypeOCIManifest, false},
		"an invalid digest":          {`{"layers":[{"mediaType":"x","digest":"sha256:../../x"}]}`, TypeOCIManifest, false},
		"a negative size":            {`{"layers":[{"mediaType":"x","digest":"` + goodDigest + `","size":-1}]}`, TypeOCIManifest, false},
		"too many descriptors":       {`{"layers":[` + strings.TrimSuffix(strings.Repeat(descriptor+",", maxDescriptors+1), ",") + `]}`, TypeOCIManifest, false},
		"no JSON":                    {`<html>`, TypeOCIManifest, false},
	} {
		m, err := parseManifest([]byte(tc.body), tc.served)
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && m.Digest != trust.DigestOf([]byte(tc.body)) {
			t.Errorf("%s: digest %s", name, m.Digest)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(`{"mediaType":"`+TypeOCIManifest+`","config":`+descriptor+`,"layers":[`+descriptor+`]}`), TypeOCIManifest)
	f.Add([]byte(`{"manifests":[`+descriptor+`]}`), TypeOCIIndex)
	f.Add([]byte(`{"layers":[],"manifests":[]}`), "")
	f.Fuzz(func(t *testing.T, b []byte, served string) {
		m, err := parseManifest(b, served)
		if err != nil {
			return
		}
		if m.IsIndex() && (len(m.Layers) > 0 || m.Config != nil) {
			t.Errorf("an index with layers: %q", b)
		}
		for _, d := range append(m.Layers, m.Manifests...) {
			if len(d.Digest.Bytes()) != 32 || len(d.URLs) > 0 || d.Size < 0 {
				t.Errorf("descriptor %+v in %q", d, b)
			}
		}
	})
}

func TestInvalidRegistriesFilesAreRejected(t *testing.T) {
	good := `registries:
- host: registry.example.com:5000
  mirrors: [mirror.example.com/cache]
  credentials: {username: robot, passwordFile: /etc/x}
  authHosts: [auth.example.com]
`
	c, err := ParseConfig([]byte(good))
	if err != nil || c.host("registry.example.com:5000").Mirrors[0] != "mirror.example.com/cache" || c.host("else").Host != "else" {
		t.Errorf("got %+v, %v", c, err)
	}
	for name, text := range map[string]string{
		"an unknown field":         "registries: [{host: a, insecure: true}]",
		"a host with a path":       "registries: [{host: a/b}]",
		"a duplicate host":         "registries: [{host: a}, {host: a}]",
		"a mirror with a scheme":   "registries: [{host: a, mirrors: ['http://b']}]",
		"a user without password":  "registries: [{host: a, credentials: {username: u}}]",
		"two kinds of credentials": "registries: [{host: a, credentials: {username: u, passwordFile: f, dockerConfig: g}}]",
		"a large file":             "#" + strings.Repeat(" ", maxConfig),
	} {
		if _, err := ParseConfig([]byte(text)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if c, err := ParseConfig([]byte("registries: [{host: docker.io, mirrors: [m]}]")); err != nil || len(c.host("index.docker.io").Mirrors) != 1 {
		t.Errorf("Docker Hub as docker.io: %+v, %v", c, err)
	}
	if c, err := ParseConfig(nil); err != nil || len(c.Registries) != 0 {
		t.Errorf("an empty file: %v", err)
	}
}

func TestErrorsDoNotContainSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.json")
	for name, content := range map[string]string{
		"a broken file":       `{"auths":{"a":{"auth":"c2VjcmV0`,
		"another host's":      `{"auths":{"b":{"auth":"c2VjcmV0"}}}`,
		"something else":      `c2VjcmV0`,
		"a wrongly typed one": `{"auths":{"a":{"auth":["c2VjcmV0"]}}}`,
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Host{Host: "a", Credentials: Credentials{DockerConfig: file}}.Authorization()
		if err == nil || strings.Contains(err.Error(), "c2VjcmV0") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(file, []byte(`{"auths":{"a":{"username":"u","password":"p"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if a, err := (Host{Host: "a", Credentials: Credentials{DockerConfig: file}}).Authorization(); err != nil || a.Username != "u" || a.Password != "p" {
		t.Errorf("got %+v, %v", a, err)
	}
}
