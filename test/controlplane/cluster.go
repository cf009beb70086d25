// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Cluster is a running control plane. Its methods may be called from several
// goroutines; those that pause and restart components affect all its users.
type Cluster struct {
	// Config authenticates as an administrator (system:masters), without a
	// client-side rate limit. Copy it before changing it.
	Config *rest.Config
	// URL is the API server's address.
	URL string
	// Dir has data, certificates, kubeconfigs and one log per component.
	Dir string

	opts  Options
	bins  binaries
	kwok  string
	ca    *authority
	ports ports
	probe *http.Client

	removeDir bool
	dirLock   *os.File

	mu      sync.Mutex
	procs   map[string]*process
	order   []string // in the order of their start
	stopped bool
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig("admin") }

func (c *Cluster) kubeconfig(user string) string { return c.file(user + ".kubeconfig") }

// ConfigFor returns a configuration that is authenticated, by a client
// certificate, as the user and the groups: the API server adds only
// system:authenticated. It lets a test run with the rights of a role.
func (c *Cluster) ConfigFor(user string, groups ...string) (*rest.Config, error) {
	client, err := c.ca.client(user, groups, time.Now())
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            c.URL,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem, CertData: client.cert, KeyData: client.key},
		QPS:             -1, // the server has priority and fairness
	}, nil
}

// ConfigForServiceAccount returns a configuration with the user and groups of
// a service account's token. The account needn't exist.
func (c *Cluster) ConfigForServiceAccount(namespace, name string) (*rest.Config, error) {
	return c.ConfigFor("system:serviceaccount:"+namespace+":"+name,
		"system:serviceaccounts", "system:serviceaccounts:"+namespace)
}

// WriteKubeconfig writes a configuration made by this cluster to path, for
// programs that take a file.
func WriteKubeconfig(path string, config *rest.Config) error {
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"controlplane": {
			Server: config.Host, CertificateAuthorityData: config.CAData,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"user": {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		}},
		Contexts:       map[string]*clientcmdapi.Context{"controlplane": {Cluster: "controlplane", AuthInfo: "user"}},
		CurrentContext: "controlplane",
	})
	if err != nil {
		return fmt.Errorf("encode a kubeconfig: %w", err)
	}
	return writeFile(path, data)
}

func (c *Cluster) writeKubeconfig(user string, config *rest.Config) error {
	return WriteKubeconfig(c.kubeconfig(user), config)
}

// Stop ends all components and removes the directory if it was a temporary
// one. A second call does nothing.
func (c *Cluster) Stop() error { return c.stop() }

func (c *Cluster) stop() error {
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return nil
	}
	c.stopped = true
	order, procs := c.order, c.procs
	c.mu.Unlock()
	var failures error
	// The data are removed with the directory, so no graceful end is needed; a
	// kept directory has everything that the API server acknowledged.
	for _, component := range slices.Backward(order) {
		failures = errors.Join(failures, procs[component].kill())
	}
	if c.removeDir {
		if err := os.RemoveAll(c.Dir); err != nil {
			failures = errors.Join(failures, fmt.Errorf("remove the control plane's directory: %w", err))
		}
	}
	if c.dirLock != nil {
		failures = errors.Join(failures, c.dirLock.Close())
	}
	return failures
}

// dirPrefix is the prefix of temporary directories, for sweep.
const dirPrefix = "lockstep-controlplane-"

// makeDir creates the directory and removes those of control planes whose
// owner was killed.
func (c *Cluster) makeDir() error {
	if c.opts.Dir != "" {
		c.Dir = c.opts.Dir
		if err := os.MkdirAll(c.Dir, 0o700); err != nil {
			return fmt.Errorf("make the control plane's directory: %w", err)
		}
		if entries, err := os.ReadDir(c.Dir); err != nil || len(entries) > 0 {
			return errors.Join(err, fmt.Errorf("use %s for a control plane: it isn't empty (%d entries)", c.Dir, len(entries)))
		}
	} else {
		sweep(os.TempDir())
		dir, err := os.MkdirTemp("", dirPrefix)
		if err != nil {
			return fmt.Errorf("make the control plane's directory: %w", err)
		}
		c.Dir, c.removeDir = dir, true
	}
	held, err := os.OpenFile(c.file("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the control plane's directory: %w", err)
	}
	c.dirLock = held
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock the control plane's directory: %w", err)
	}
	return writeFile(c.file("audit-policy.yaml"), []byte(auditPolicy))
}

// sweep removes directories that no process holds, as far as it can.
func sweep(tmp string) {
	dirs, err := filepath.Glob(filepath.Join(tmp, dirPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		info, err := os.Stat(filepath.Join(dir, "lock"))
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue // new: its owner may not hold the lock yet
		}
		held, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
		if err != nil {
			continue // another user's
		}
		if syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = held.Close()
	}
}

// startComponent starts a component that isn't running.
func (c *Cluster) startComponent(component string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return fmt.Errorf("start %s: the control plane was stopped", component)
	}
	old, known := c.procs[component]
	if known {
		if gone, _ := old.exited(); !gone {
			return nil
		}
	}
	argv, err := c.arguments(component)
	if err != nil {
		return err
	}
	p, err := startProcess(component, argv, c.Dir)
	if err != nil {
		return err
	}
	if !known {
		c.order = append(c.order, component)
	}
	c.procs[component] = p
	return nil
}

func (c *Cluster) process(component string) (*process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.procs[component]
	if !ok {
		return nil, fmt.Errorf("find %s: the %s profile has none", component, c.opts.Profile)
	}
	return p, nil
}

// deadComponent returns an error that names a component that has ended.
func (c *Cluster) deadComponent() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range c.order {
		if gone, err := c.procs[name].exited(); gone {
			return fmt.Errorf("%s has ended: %w", name, errors.Join(errEnded, err))
		}
	}
	return nil
}

var errEnded = errors.New("unexpected exit")

// tails returns the ends of all logs.
func (c *Cluster) tails() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, name := range c.order {
		fmt.Fprintf(&b, "--- %s\n%s\n", name, c.procs[name].tail(12))
	}
	return b.String()
}
