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

// Limits of the registries file and of the files that it refers to.
const (
	maxConfig     = 256 << 10
	maxHosts      = 128
	maxMirrors    = 8
	maxCredential = 64 << 10
)

// dockerHub is the common name of name.DefaultRegistry.
const dockerHub = "docker.io"

// Config is the registries file. Hosts that it doesn't list are accessed over TLS
// with the system's root certificates and without credentials.
type Config struct {
	Registries []Host `yaml:"registries"`
}

// Host configures access to a registry.
type Host struct {
	// Host is the registry as in references, with its port.
	Host string `yaml:"host"`
	// Mirrors are tried first, in order: "host[:port][/prefix]". Signatures are
	// verified for the original reference.
	Mirrors []string `yaml:"mirrors,omitempty"`
	// CA is a file with PEM certificates. If set, only these are trusted for the
	// host, and neither those of the system nor of --ca-file.
	CA string `yaml:"ca,omitempty"`
	// Credentials are read from files at each use, so that they can be rotated.
	Credentials Credentials `yaml:"credentials,omitempty"`
	// AuthHosts are token servers that may also receive the credentials.
	AuthHosts []string `yaml:"authHosts,omitempty"`
	// PlainHTTP allows HTTP. It also requires the option of the process.
	PlainHTTP bool `yaml:"plainHTTP,omitempty"`
}

// Credentials are a user and a password file, or a Docker configuration file.
type Credentials struct {
	Username     string `yaml:"username,omitempty"`
	PasswordFile string `yaml:"passwordFile,omitempty"`
	DockerConfig string `yaml:"dockerConfig,omitempty"`
}

// ParseConfig parses a registries file and rejects unknown fields.
func ParseConfig(b []byte) (Config, error) {
	var c Config
	if len(b) > maxConfig {
		return c, fmt.Errorf("parse registries file: %d bytes, at most %d are allowed", len(b), maxConfig)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("parse registries file: %w", err)
	}
	if len(c.Registries) > maxHosts {
		return c, fmt.Errorf("parse registries file: %d hosts, at most %d are allowed", len(c.Registries), maxHosts)
	}
	seen := map[string]bool{}
	for i := range c.Registries {
		h := &c.Registries[i]
		if h.Host == dockerHub {
			h.Host = name.DefaultRegistry
		}
		if err := h.check(); err != nil {
			return c, fmt.Errorf("parse registries file: %w", err)
		}
		if seen[h.Host] {
			return c, fmt.Errorf("parse registries file: duplicate host %q", h.Host)
		}
		seen[h.Host] = true
	}
	return c, nil
}

// LoadConfig reads the registries file at path. Without a path it returns an empty
// Config.
func LoadConfig(path string) (Config, error) {
	if path == "" {
		return Config{}, nil
	}
	b, err := files.Read(path, maxConfig)
	if err != nil {
		return Config{}, fmt.Errorf("read registries file: %w", err)
	}
	return ParseConfig(b)
}

func (h Host) check() error {
	c := h.Credentials
	switch {
	case h.Host == "" || strings.ContainsAny(h.Host, "/@ "):
		return fmt.Errorf("invalid host %q: must be host[:port]", h.Host)
	case len(h.Mirrors) > maxMirrors:
		return fmt.Errorf("host %s has %d mirrors, at most %d are allowed", h.Host, len(h.Mirrors), maxMirrors)
	case c.DockerConfig != "" && (c.Username != "" || c.PasswordFile != ""):
		return fmt.Errorf("host %s: dockerConfig and username are mutually exclusive", h.Host)
	case (c.Username == "") != (c.PasswordFile == ""):
		return fmt.Errorf("host %s: username and passwordFile must be set together", h.Host)
	}
	for _, m := range h.Mirrors {
		if m == "" || strings.Contains(m, "://") || strings.ContainsAny(m, "@ ") {
			return fmt.Errorf("host %s: invalid mirror %q: must be host[:port][/prefix]", h.Host, m)
		}
	}
	return nil
}

// host returns the configuration of a host.
func (c Config) host(registry string) Host {
	for _, h := range c.Registries {
		if h.Host == registry {
			return h
		}
	}
	return Host{Host: registry}
}

// pool returns the certificates of the CA file, or nil for the system's roots.
func (h Host) pool() (*x509.CertPool, error) {
	if h.CA == "" {
		return nil, nil
	}
	b, err := files.Read(h.CA, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("read CA of registry %s: %w", h.Host, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("read CA of registry %s: %s contains no PEM certificate", h.Host, h.CA)
	}
	return pool, nil
}

// Authorization reads the credentials. It implements authn.Authenticator, so that
// each token exchange uses the current files.
func (h Host) Authorization() (*authn.AuthConfig, error) {
	c := h.Credentials
	switch {
	case c.PasswordFile != "":
		b, err := files.Read(c.PasswordFile, maxCredential)
		if err != nil {
			return nil, fmt.Errorf("read password of registry %s: %w", h.Host, err)
		}
		return &authn.AuthConfig{Username: c.Username, Password: strings.TrimRight(string(b), "\r\n")}, nil
	case c.DockerConfig != "":
		return h.dockerConfig()
	default:
		return &authn.AuthConfig{}, nil
	}
}

// dockerConfig reads the host's entry in a Docker configuration file. It doesn't
// run credential helpers.
func (h Host) dockerConfig() (*authn.AuthConfig, error) {
	b, err := files.Read(h.Credentials.DockerConfig, maxCredential)
	if err != nil {
		return nil, fmt.Errorf("read credentials of registry %s: %w", h.Host, err)
	}
	var f struct {
		Auths map[string]authn.AuthConfig `json:"auths"`
	}
	if json.Unmarshal(b, &f) != nil { // the error could contain a secret
		return nil, fmt.Errorf("read credentials of registry %s: %s isn't a Docker configuration", h.Host, h.Credentials.DockerConfig)
	}
	for _, key := range []string{h.Host, "https://" + h.Host, "https://" + h.Host + "/v1/"} {
		if a, ok := f.Auths[key]; ok {
			return &a, nil
		}
	}
	return nil, fmt.Errorf("read credentials of registry %s: %s has no entry for the registry", h.Host, h.Credentials.DockerConfig)
}

// authenticator returns the host's credentials, or anonymous access.
func (h Host) authenticator() authn.Authenticator {
	if h.Credentials == (Credentials{}) {
		return authn.Anonymous
	}
	return h
}
