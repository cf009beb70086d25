// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fluxcd/pkg/gittestserver"
	"golang.org/x/crypto/ssh"
)

// Credentials of the Git server.
const (
	gitUser     = "lockstep"
	gitPassword = "correct-horse-battery"
)

// Git is a Git server over HTTPS with a repository, and a clone of it that the
// tests work in, with the real git.
type Git struct {
	// URL is the repository's, without credentials, as a GitSource declares it.
	URL string
	// CA is the server's certificate authority, PEM.
	CA []byte
	// Clone is the working copy.
	Clone string
	// Proxy is in front of the server.
	Proxy *Proxy

	server *gittestserver.GitServer
	dir    string
}

// newGit starts the server and clones the empty repository.
func newGit(ctx context.Context, dir string) (*Git, error) {
	ca, cert, key, err := serverCertificate("git")
	if err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "git")
	server := gittestserver.NewGitServer(root)
	server.Auth(gitUser, gitPassword)
	server.AutoCreate()
	if err := server.StartHTTPS(cert, key, ca, "localhost"); err != nil {
		return nil, fmt.Errorf("git server: %w", err)
	}
	at, err := url.Parse(server.HTTPAddress())
	if err != nil {
		return nil, fmt.Errorf("git server's address: %w", err)
	}
	proxy, err := NewProxy(ctx, at.Host)
	if err != nil {
		server.StopHTTP()
		return nil, err
	}
	g := &Git{
		URL:    "https://" + proxy.Address() + "/platform/fleet.git",
		CA:     ca,
		Clone:  filepath.Join(dir, "fleet"),
		Proxy:  proxy,
		server: server,
		dir:    dir,
	}
	if err := os.WriteFile(g.caFile(), ca, 0o600); err != nil {
		return nil, fmt.Errorf("certificate of the git server: %w", err)
	}
	if err := os.MkdirAll(g.Clone, 0o750); err != nil {
		return nil, fmt.Errorf("working copy: %w", err)
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"},
		{"config", "user.name", "platform team"},
		{"config", "user.email", "platform@example.com"},
		{"config", "gpg.format", "ssh"},
		{"remote", "add", "origin", g.CloneURL()},
	} {
		if _, err := g.Run(ctx, args...); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (g *Git) caFile() string { return filepath.Join(g.dir, "git-ca.crt") }

// CloneURL is the URL with the server's credentials.
func (g *Git) CloneURL() string {
	return strings.Replace(g.URL, "https://", "https://"+gitUser+":"+gitPassword+"@", 1)
}

// Run runs git in the working copy.
func (g *Git) Run(ctx context.Context, args ...string) (string, error) {
	return runIn(ctx, g.Clone, []string{"GIT_SSL_CAINFO=" + g.caFile(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_TERMINAL_PROMPT=0"}, "git", args...)
}

// Write writes files into the working copy; an empty content removes the file.
func (g *Git) Write(files map[string]string) error {
	for name, content := range files {
		path := filepath.Join(g.Clone, filepath.FromSlash(name))
		if content == "" {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove %s: %w", name, err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// Commit writes the files and commits everything, signed with the SSH private
// key in the file key; "" makes an unsigned commit. It returns the hash.
func (g *Git) Commit(ctx context.Context, key, message string, files map[string]string) (string, error) {
	if err := g.Write(files); err != nil {
		return "", err
	}
	if _, err := g.Run(ctx, "add", "-A"); err != nil {
		return "", err
	}
	args := []string{"commit", "-q", "--allow-empty", "-m", message}
	if key != "" {
		args = append([]string{"-c", "user.signingkey=" + key}, append(args, "-S")...)
	}
	if _, err := g.Run(ctx, args...); err != nil {
		return "", err
	}
	return g.Head(ctx)
}

// Head returns the hash of the working copy's commit.
func (g *Git) Head(ctx context.Context) (string, error) {
	out, err := g.Run(ctx, "rev-parse", "HEAD")
	return strings.TrimSpace(out), err
}

// Push pushes a branch.
func (g *Git) Push(ctx context.Context, branch string, args ...string) error {
	_, err := g.Run(ctx, append(append([]string{"push", "-q"}, args...), "origin", branch)...)
	return err
}

// StatusFile returns a file of the status branch on the server.
func (g *Git) StatusFile(ctx context.Context, cluster, name string) (string, error) {
	if err := g.fetchStatus(ctx, cluster); err != nil {
		return "", err
	}
	return g.Run(ctx, "show", "refs/remotes/origin/lockstep-status/"+cluster+":"+name)
}

// StatusLog returns the status branch's log, newest first.
func (g *Git) StatusLog(ctx context.Context, cluster string, args ...string) (string, error) {
	if err := g.fetchStatus(ctx, cluster); err != nil {
		return "", err
	}
	return g.Run(ctx, append(append([]string{"log"}, args...), "refs/remotes/origin/lockstep-status/"+cluster)...)
}

func (g *Git) fetchStatus(ctx context.Context, cluster string) error {
	ref := "lockstep-status/" + cluster
	_, err := g.Run(ctx, "fetch", "-q", "origin", "+refs/heads/"+ref+":refs/remotes/origin/"+ref)
	return err
}

func (g *Git) close() {
	g.Proxy.Close()
	g.server.StopHTTP()
}

// NewSSHKey creates an ed25519 key pair in OpenSSH's format: it writes the
// private key to path and returns the public line.
func NewSSHKey(path, comment string) (string, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", fmt.Errorf("key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return "", fmt.Errorf("encode the key: %w", err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return "", fmt.Errorf("write the key: %w", err)
	}
	line, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("public key: %w", err)
	}
	text := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(line))) + " " + comment
	if err := os.WriteFile(path+".pub", []byte(text+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write the public key: %w", err)
	}
	return text, nil
}

// serverCertificate creates an authority and a certificate for loopback.
func serverCertificate(name string) (ca, cert, key []byte, err error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("key: %w", err)
	}
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name + " authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, authority, authority, caKey.Public(), caKey)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("authority: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("key: %w", err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(48 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, leafKey.Public(), caKey)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("certificate: %w", err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("encode the key: %w", err)
	}
	encode := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	return encode("CERTIFICATE", caDER), encode("CERTIFICATE", der), encode("PRIVATE KEY", rawKey), nil
}
