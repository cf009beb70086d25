// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
)

// KubeletVersion is the version that the hosts' first system reports.
const KubeletVersion = "v1.36.3"

// initHosts creates certificates, the first OS image and the machines, and
// waits until their Nodes are Ready.
func (w *Env) initHosts(ctx context.Context) error {
	if w.opts.Hosts == 0 {
		return nil
	}
	if _, err := w.Lockstep(ctx, "pki", "init", "--dir", w.Path("pki"), "--cluster-uid", w.clusterUID); err != nil {
		return err
	}
	if _, err := w.Lockstep(ctx, "pki", "issue", "caller", "reconciler", "--dir", w.Path("pki"), "--role", "reconciler"); err != nil {
		return err
	}
	ref, err := w.BuildOS(ctx, sim.Document{Product: "platform-os", Version: "1.0.0", KubeletVersion: KubeletVersion, OSImage: "Platform OS 1.0.0", BootSeconds: 1})
	if err != nil {
		return err
	}
	if err := w.Sign(ctx, "os", ref); err != nil {
		return err
	}
	w.simDigest = ref
	for i := range w.opts.Hosts {
		if err := w.addHost(ctx, fmt.Sprintf("node-%d", i+1)); err != nil {
			return err
		}
	}
	w.simnode, err = start(w.Dir, "simnode", nil, filepath.Join(w.opts.Bin, "simnode"),
		"-kubeconfig", w.Control.Kubeconfig(), "-machines", w.Path("machines"), "-label", "node-restriction.kubernetes.io/pool=workers")
	if err != nil {
		return err
	}
	err = Wait(ctx, time.Minute, func(ctx context.Context) error {
		for name := range w.Hosts {
			if _, err := w.ReadyNode(ctx, name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the hosts' nodes: %w", err)
	}
	w.opts.Log("%d hosts with agents, booted into platform-os 1.0.0; their nodes are Ready", w.opts.Hosts)
	return nil
}

// FirstOS is the reference of the hosts' first system.
func (w *Env) FirstOS() string { return w.simDigest }

// addHost creates a machine, its certificate and its Host object, and powers
// it on.
func (w *Env) addHost(ctx context.Context, name string) error {
	address, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	if _, err := w.Lockstep(ctx, "pki", "issue", "host", name, "--dir", w.Path("pki"), "--address", "127.0.0.1"); err != nil {
		return err
	}
	dir := w.Path("machines", name)
	h := &Host{Name: name, Address: address, dir: dir}
	h.args = []string{
		"-supervise", "-listen", address, "-state-dir", w.Path("agents", name), "-pki-dir", w.Path("pki", "hosts", name),
		"-cluster-uid", w.clusterUID, "-node-name", name, "-sim-dir", dir, "-sim-image", w.osFile("1.0.0"), "-sim-image-ref", w.simDigest,
		"-trust-policy", w.Path("trust", "root.json"), "-trust-root-digest", w.trustRoot,
		"-allow-loopback-registries", "-min-restart-interval", "1s",
	}
	if err := os.MkdirAll(w.Path("agents", name), 0o700); err != nil {
		return fmt.Errorf("state of %s: %w", name, err)
	}
	w.Hosts[name] = h
	if err := w.PowerOn(name); err != nil {
		return err
	}
	host := &v1alpha1.Host{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: name},
		Spec:       v1alpha1.HostSpec{Address: address, Identity: &v1alpha1.HostIdentity{HostID: name}},
	}
	if err := w.Client.Create(ctx, host); err != nil {
		return fmt.Errorf("host %s: %w", name, err)
	}
	return nil
}

// PowerOn starts a machine: its firmware, then its agent.
func (w *Env) PowerOn(name string) error {
	h := w.Hosts[name]
	p, err := start(w.Dir, "agent-"+name, nil, filepath.Join(w.opts.Bin, "lockstep-agent"), h.args...)
	if err != nil {
		return err
	}
	h.Agent = p
	return nil
}

// PowerOff cuts a machine's power: SIGKILL to its firmware, which ends the
// agent too.
func (w *Env) PowerOff(name string) error {
	h := w.Hosts[name]
	if h.Agent == nil {
		return nil
	}
	err := h.Agent.Kill()
	h.Agent = nil
	return err
}

// ReadyNode returns a Node that is Ready.
func (w *Env) ReadyNode(ctx context.Context, name string) (*corev1.Node, error) {
	var node corev1.Node
	if err := w.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return nil, err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return &node, nil
		}
	}
	return nil, fmt.Errorf("node %s isn't Ready", name)
}

// Booted returns the version of the OS that a machine runs, read from the
// machine's directory.
func (w *Env) Booted(ctx context.Context, name string) (string, error) {
	node, err := w.ReadyNode(ctx, name)
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(node.Status.NodeInfo.OSImage, "Platform OS "), nil
}

// freeAddress finds a free port of loopback.
func freeAddress(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
