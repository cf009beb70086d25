// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// startAttempts covers a free port that another program takes before the bind.
const startAttempts = 3

// Start starts a control plane and returns when it is ready: the API server
// serves, and unless the profile is Bare, the controllers have created the
// default service account. The caller stops it. Missing binaries are compiled
// first (see Ensure), with the progress on standard error.
//
// The context only bounds the start; it doesn't end the control plane.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	bins, kwok, err := locate(ctx, o, os.Stderr)
	if err != nil {
		return nil, err
	}
	var failures error
	for range startAttempts {
		c, err := startOnce(ctx, o, bins, kwok)
		if err == nil {
			return c, nil
		}
		failures = errors.Join(failures, err)
		if !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	return nil, failures
}

// locate finds or compiles the binaries of the profile.
func locate(ctx context.Context, o Options, progress io.Writer) (bins binaries, kwok string, err error) {
	bins, found, err := fromEnvironment(os.Getenv)
	if err != nil {
		return binaries{}, "", err
	}
	if !found {
		if bins.multicall, err = Ensure(ctx, progress); err != nil {
			return binaries{}, "", err
		}
	}
	if o.Profile == Full {
		if kwok, err = EnsureKwok(ctx, progress); err != nil {
			return binaries{}, "", err
		}
	}
	return bins, kwok, nil
}

func startOnce(ctx context.Context, o Options, bins binaries, kwok string) (_ *Cluster, err error) {
	timeout := o.ReadyTimeout
	if timeout == 0 {
		timeout = defaultReadyTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := newCluster(o, bins, kwok)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	for _, component := range []string{etcd, apiServer} {
		if err := c.startComponent(component); err != nil {
			return nil, err
		}
	}
	if err := c.WaitReady(ctx); err != nil {
		return nil, err
	}
	return c, c.startControllers(ctx)
}

// startControllers starts the components that need a serving API server.
func (c *Cluster) startControllers(ctx context.Context) error {
	if c.opts.Profile == Bare {
		return nil
	}
	if err := c.startComponent(controllerManager); err != nil {
		return err
	}
	if c.opts.Profile == Full {
		if err := c.startFull(ctx); err != nil {
			return err
		}
	}
	const account = "/api/v1/namespaces/default/serviceaccounts/default"
	if err := c.waitFor(ctx, "the controller-manager to make the default service account", account); err != nil {
		return err
	}
	return nil
}

// newCluster prepares the directory: certificates, kubeconfig and ports.
func newCluster(o Options, bins binaries, kwok string) (_ *Cluster, err error) {
	c := &Cluster{opts: o, bins: bins, kwok: kwok, procs: map[string]*process{}}
	if err := c.makeDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	if err := c.choosePorts(); err != nil {
		return nil, err
	}
	now := time.Now()
	if c.ca, err = newAuthority("controlplane-ca", now); err != nil {
		return nil, err
	}
	if err := c.writeCertificates(now); err != nil {
		return nil, err
	}
	c.URL = "https://127.0.0.1:" + strconv.Itoa(c.ports.apiServer)
	if c.Config, err = c.ConfigFor("controlplane-admin", "system:masters"); err != nil {
		return nil, err
	}
	if err := c.writeKubeconfig("admin", c.Config); err != nil {
		return nil, err
	}
	for _, user := range []string{controllerManager, scheduler} {
		config, err := c.ConfigFor("system:" + user)
		if err != nil {
			return nil, err
		}
		if err := c.writeKubeconfig(user, config); err != nil {
			return nil, err
		}
	}
	// One connection pool for the readiness probes, apart from the tests' own.
	c.probe, err = rest.HTTPClientFor(c.Config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	c.probe.Timeout = 5 * time.Second
	return c, nil
}

func (c *Cluster) writeCertificates(now time.Time) error {
	serving, err := c.ca.server(now)
	if err != nil {
		return err
	}
	// The front proxy has its own authority: a client certificate must not
	// allow impersonation.
	frontCA, err := newAuthority("controlplane-front-proxy-ca", now)
	if err != nil {
		return err
	}
	front, err := frontCA.client("front-proxy-client", nil, now)
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(filepath.Join(c.Dir, "ca.crt"), c.ca.pem),
		writeFile(filepath.Join(c.Dir, "front-proxy-ca.crt"), frontCA.pem),
		serving.write(c.Dir, "apiserver"),
		front.write(c.Dir, "front-proxy"),
		writeServiceAccountKeys(c.Dir),
	)
}

// ports are the loopback ports of the components.
type ports struct {
	etcd, etcdPeer, apiServer, controllerManager, scheduler int
}

// choosePorts asks the kernel for free ports, all at the same time so that
// they differ.
func (c *Cluster) choosePorts() error {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	p := &c.ports
	for _, port := range []*int{&p.etcd, &p.etcdPeer, &p.apiServer, &p.controllerManager, &p.scheduler} {
		l, err := net.Listen("tcp4", "127.0.0.1:0") //nolint:noctx // binds at once, waits for nothing
		if err != nil {
			return fmt.Errorf("find a free port on loopback: %w", err)
		}
		listeners = append(listeners, l)
		address, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return fmt.Errorf("find a free port on loopback: unexpected address %v", l.Addr())
		}
		*port = address.Port
	}
	return nil
}

// WaitReady waits until the API server answers /readyz with 200.
func (c *Cluster) WaitReady(ctx context.Context) error {
	return c.waitFor(ctx, "the API server to be ready", "/readyz")
}

// waitFor polls path until it answers 200. It fails when ctx ends or a
// component has ended, with the end of the relevant log.
func (c *Cluster) waitFor(ctx context.Context, what, path string) error {
	last := "no answer yet"
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		if err := c.deadComponent(); err != nil {
			return false, err
		}
		status, body, err := c.get(ctx, path)
		if err != nil {
			last = err.Error()
			return false, nil //nolint:nilerr // refused connections are what is waited for; the last one is shown
		}
		last = fmt.Sprintf("HTTP %d: %s", status, body)
		return status == http.StatusOK, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w; last answer of %s: %s\n%s", what, err, path, last, c.tails())
	}
	return nil
}

// get returns the status and the first bytes of an answer.
func (c *Cluster) get(ctx context.Context, path string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, http.NoBody)
	if err != nil {
		return 0, "", fmt.Errorf("make the request: %w", err)
	}
	response, err := c.probe.Do(request)
	if err != nil {
		return 0, "", err // url.Error has the method and the address
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 512))
	if err != nil {
		return 0, "", fmt.Errorf("read the answer: %w", err)
	}
	return response.StatusCode, string(body), nil
}

// pollEvery is short compared with the seconds of a start.
const pollEvery = 50 * time.Millisecond

// poll calls check immediately and at each tick until it returns true, fails
// or ctx ends.
func poll(ctx context.Context, check func(context.Context) (bool, error)) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		done, err := check(ctx)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
