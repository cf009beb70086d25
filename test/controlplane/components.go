// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// arguments returns the whole argument vector of a component.
func (c *Cluster) arguments(component string) ([]string, error) {
	if component == kwokNodes || component == kwokPods {
		return c.kwokArguments(component), nil
	}
	command, err := c.bins.command(component)
	if err != nil {
		return nil, err
	}
	switch component {
	case etcd:
		return append(command, c.etcdFlags()...), nil
	case apiServer:
		return append(command, c.apiServerFlags()...), nil
	case controllerManager:
		return append(command, c.controllerManagerFlags()...), nil
	case scheduler:
		return append(command, c.schedulerFlags()...), nil
	}
	return nil, fmt.Errorf("start %q: no such component", component)
}

func (c *Cluster) file(name string) string { return filepath.Join(c.Dir, name) }

func loopback(scheme string, port int) string {
	return scheme + "://127.0.0.1:" + strconv.Itoa(port)
}

func (c *Cluster) etcdFlags() []string {
	client, peer := loopback("http", c.ports.etcd), loopback("http", c.ports.etcdPeer)
	return []string{
		"--name=default", "--data-dir=" + c.file("etcd"), "--log-level=warn",
		// A test's data needn't survive a power cut, and fsync is half the
		// time.
		"--unsafe-no-fsync",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
	}
}

func (c *Cluster) apiServerFlags() []string {
	flags := []string{
		"--etcd-servers=" + loopback("http", c.ports.etcd),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.ports.apiServer),
		"--tls-cert-file=" + c.file("apiserver.crt"), "--tls-private-key-file=" + c.file("apiserver.key"),
		"--client-ca-file=" + c.file("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.file("sa.pub"), "--service-account-signing-key-file=" + c.file("sa.key"),
		"--service-cluster-ip-range=10.0.0.0/16",
		"--authorization-mode=Node,RBAC", "--anonymous-auth=false", "--allow-privileged=true",
		"--enable-admission-plugins=NodeRestriction",
		"--endpoint-reconciler-type=none", "--profiling=false",
		// Without the front proxy's flags the other components log errors
		// continuously.
		"--requestheader-client-ca-file=" + c.file("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.file("front-proxy.crt"), "--proxy-client-key-file=" + c.file("front-proxy.key"),
	}
	if c.opts.AuditLog != "" {
		flags = append(flags, "--audit-policy-file="+c.file("audit-policy.yaml"), "--audit-log-path="+c.opts.AuditLog)
	}
	return append(flags, c.opts.APIServerFlags...)
}

func (c *Cluster) controllerManagerFlags() []string {
	return append(c.clientFlags(controllerManager, c.ports.controllerManager),
		"--service-account-private-key-file="+c.file("sa.key"), "--root-ca-file="+c.file("ca.crt"),
		"--use-service-account-credentials=true")
}

func (c *Cluster) schedulerFlags() []string {
	return c.clientFlags(scheduler, c.ports.scheduler)
}

// clientFlags are common to the controller-manager and the scheduler.
func (c *Cluster) clientFlags(user string, port int) []string {
	kubeconfig := c.kubeconfig(user)
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--kube-api-qps=500", "--kube-api-burst=1000", "--profiling=false",
	}
}

// auditPolicy logs requests without bodies.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`
