// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"go.yaml.in/yaml/v3"

	"github.com/lockstep-dev/lockstep/config/files"
)

// The limits of the registries file and of the files that it names.
const (
	maxConfig     = 256 << 10
	maxHosts      = 128
	maxMirrors    = 8
	maxCredential = 64 << 10
)

// dockerHub is how people write name.DefaultRegistry.
const dockerHub = "docker.io"

// Config is the registries file: what to know of each registry host. Hosts
// that it doesn't list are reached over TLS with the system's roots and
// without credentials.
type Config struct {
	Registries []Host `yaml:"registries"`
}

// Host says how a registry is reached.
type Host struct {
	// Host is the registry as it stands in a reference, with its port.
	Host string `yaml:"host"`
	// Mirrors are tried first, in order, each "host[:port][/prefix]". What they
	// serve is verified under the name in the reference.
	Mirrors []string `yaml:"mirrors,omitempty"`
	// CA is a file of PEM certificates that alone are trusted for this host.
	CA string `yaml:"ca,omitempty"`
	// Credentials are read from files at each use, so that they rotate.
	Credentials Credentials `yaml:"credentials,omitempty"`
	// AuthHosts may receive the credentials besides Host itself: token servers.
	AuthHosts []string `yaml:"authHosts,omitempty"`
	// PlainHTTP allows HTTP; it also needs the process option, unless the host
	// is a loopback address.
	PlainHTTP bool `yaml:"plainHTTP,omitempty"`
}

// Credentials name a user and a file with the password, or a Docker
// configuration file.
type Credentials struct {
	Username     string `yaml:"username,omitempty"`
	PasswordFile string `yaml:"passwordFile,omitempty"`
	DockerConfig string `yaml:"dockerConfig,omitempty"`
}

// ParseConfig reads a registries file strictly.
func ParseConfig(b []byte) (Config, error) {
	var c Config
	if len(b) > maxConfig {
		return c, fmt.Errorf("registries file has %d bytes, at most %d are allowed", len(b), maxConfig)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("registries file: %w", err)
	}
	if len(c.Registries) > maxHosts {
		return c, fmt.Errorf("registries file has %d hosts, at most %d are allowed", len(c.Registries), maxHosts)
	}
	seen := map[string]bool{}
	for i := range c.Registries {
		h := &c.Registries[i]
		if h.Host == dockerHub {
			h.Host = name.DefaultRegistry
		}
		if err := h.check(); err != nil {
			return c, fmt.Errorf("registries file: %w", err)
		}
		if seen[h.Host] {
			return c, fmt.Errorf("registries file: host %q is there twice", h.Host)
		}
		seen[h.Host] = true
	}
	return c, nil
}

// LoadConfig reads the registries file at path; no path gives an empty one.
func LoadConfig(path string) (Config, error) {
	if path == "" {
		return Config{}, nil
	}
	b, err := files.Read(path, maxConfig)
	if err != nil {
		return Config{}, fmt.Errorf("registries file: %w", err)
	}
	return ParseConfig(b)
}

func (h Host) check() error {
	c := h.Credentials
	switch {
	case h.Host == "" || strings.ContainsAny(h.Host, "/@ "):
		return fmt.Errorf("host %q isn't a host with an optional port", h.Host)
	case len(h.Mirrors) > maxMirrors:
		return fmt.Errorf("host %s has %d mirrors, at most %d are allowed", h.Host, len(h.Mirrors), maxMirrors)
	case c.DockerConfig != "" && (c.Username != "" || c.PasswordFile != ""):
		return fmt.Errorf("host %s has both dockerConfig and a user", h.Host)
	case (c.Username == "") != (c.PasswordFile == ""):
		return fmt.Errorf("host %s needs username and passwordFile together", h.Host)
	}
	for _, m := range h.Mirrors {
		if m == "" || strings.Contains(m, "://") || strings.ContainsAny(m, "@ ") {
			return fmt.Errorf("host %s: mirror %q isn't host[:port][/prefix]", h.Host, m)
		}
	}
	return nil
}

// host returns what is known of a host.
func (c Config) host(registry string) Host {
	for _, h := range c.Registries {
		if h.Host == registry {
			return h
		}
	}
	return Host{Host: registry}
}

// pool returns the certificates of the CA file, or nil for the system's.
func (h Host) pool() (*x509.CertPool, error) {
	if h.CA == "" {
		return nil, nil
	}
	b, err := files.Read(h.CA, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("ca of registry %s: %w", h.Host, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("ca of registry %s: %s holds no PEM certificate", h.Host, h.CA)
	}
	return pool, nil
}

// Authorization reads the credentials; it implements authn.Authenticator, so
// that each token exchange sees what the files say then.
func (h Host) Authorization() (*authn.AuthConfig, error) {
	c := h.Credentials
	switch {
	case c.PasswordFile != "":
		b, err := files.Read(c.PasswordFile, maxCredential)
		if err != nil {
			return nil, fmt.Errorf("password of registry %s: %w", h.Host, err)
		}
		return &authn.AuthConfig{Username: c.Username, Password: strings.TrimRight(string(b), "\r\n")}, nil
	case c.DockerConfig != "":
		return h.dockerConfig()
	default:
		return &authn.AuthConfig{}, nil
	}
}

// dockerConfig reads the host's entry of a Docker configuration file. Helpers
// and stores that it names aren't run.
func (h Host) dockerConfig() (*authn.AuthConfig, error) {
	b, err := files.Read(h.Credentials.DockerConfig, maxCredential)
	if err != nil {
		return nil, fmt.Errorf("credentials of registry %s: %w", h.Host, err)
	}
	var f struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if json.Unmarshal(b, &f) != nil { // its message could quote a secret
		return nil, fmt.Errorf("credentials of registry %s: %s isn't a Docker configuration", h.Host, h.Credentials.DockerConfig)
	}
	for _, key := range []string{h.Host, "https://" + h.Host, "https://" + h.Host + "/v1/"} {
		if a, ok := f.Auths[key]; ok {
			return &a, nil
		}
	}
	return nil, fmt.Errorf("credentials of registry %s: %s has no entry for it", h.Host, h.Credentials.DockerConfig)
}

// authenticator returns the host's credentials, or anonymous access.
func (h Host) authenticator() authn.Authenticator {
	if h.Credentials == (Credentials{}) {
		return authn.Anonymous
	}
	return h
}
