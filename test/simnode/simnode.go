// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package simnode acts as the kubelets of simulated machines: it owns their
// Node objects and leases, so that Kubernetes sees a host under test as a real
// one. A machine that reboots is NotReady and returns with a new boot id and
// with the versions of its booted system; fake kubelets alone would pass every
// gate of a rollout.
//
// It reads only the machines' directories (package nodeos/host/sim) and
// receives nothing from agents: the agent links no Kubernetes client, and a
// faulty agent can't make its node healthy. One process serves all machines
// below a directory; each subdirectory is a machine with the name of its Node.
// A file node.json in it may add labels and an address.
//
// Pods run on these nodes by kwok.
package simnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
)

// Defaults of a Config.
const (
	// DefaultInterval is how often machines are read: no file watch reports
	// the end of a process.
	DefaultInterval = 200 * time.Millisecond
	// DefaultLease is how often a lease is renewed, as a kubelet does.
	DefaultLease = 10 * time.Second
	// workers bounds the requests at the same time.
	workers = 8
)

// Config configures Run.
type Config struct {
	// Client may write Nodes and leases.
	Client kubernetes.Interface
	// Root has a directory for each machine.
	Root string
	// Labels are given to every Node.
	Labels map[string]string
	// Interval and Lease default to DefaultInterval and DefaultLease.
	Interval time.Duration
	// Lease is how often a lease is renewed.
	Lease time.Duration
	// Now is the clock.
	Now func() time.Time
	// Log receives a line for each change; nil for none.
	Log *zap.Logger
}

// nodeFile is node.json.
type nodeFile struct {
	// Labels are added to Config.Labels.
	Labels map[string]string `json:"labels"`
	// Address is the node's InternalIP; default 127.0.0.1.
	Address string `json:"address"`
	// Taints are set on a new Node.
	Taints []corev1.Taint `json:"taints"`
}

// node is the state of one machine's Node.
type node struct {
	name  string
	file  nodeFile
	wrote view      // what was reported last
	stale bool      // the status is outdated
	since time.Time // since when Ready has its value
	made  bool      // the Node is there
	lease time.Time // last renewal
}

// view is what a kubelet reports.
type view struct {
	Ready                                    corev1.ConditionStatus
	Reason, Message                          string
	BootID, MachineID                        string
	KubeletVersion, OSImage, Product, System string
}

// Run acts as the kubelets until ctx ends; it returns nil then. A machine or a
// request that fails is retried at the next interval.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Client == nil || cfg.Root == "" || cfg.Now == nil {
		return errors.New("simnode: configuration needs Client, Root and Now")
	}
	if cfg.Interval <= 0 {
		cfg.Interval = DefaultInterval
	}
	if cfg.Lease <= 0 {
		cfg.Lease = DefaultLease
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	ticker := time.NewTicker(cfg.Interval)
	defer ticker.Stop()
	nodes := map[string]*node{}
	for {
		if err := cfg.sync(ctx, nodes); err != nil && ctx.Err() == nil {
			cfg.Log.Warn("look at the machines", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// sync finds the machines and updates each Node.
func (cfg Config) sync(ctx context.Context, nodes map[string]*node) error {
	entries, err := os.ReadDir(cfg.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no machine yet
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", cfg.Root, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, entry := range entries {
		dir := filepath.Join(cfg.Root, entry.Name())
		if _, err := os.Stat(filepath.Join(dir, "boot.json")); err != nil {
			continue // no machine, or not created yet
		}
		n, ok := nodes[entry.Name()]
		if !ok {
			n = &node{name: entry.Name()}
			nodes[n.name] = n
		}
		group.Go(func() error {
			if err := cfg.update(ctx, n, dir); err != nil && ctx.Err() == nil {
				cfg.Log.Warn("update a node", zap.String("node", n.name), zap.Error(err))
			}
			return nil
		})
	}
	return group.Wait()
}

// update updates one Node: created once, status at each change, lease while
// the kubelet runs.
func (cfg Config) update(ctx context.Context, n *node, dir string) error {
	machine, err := sim.Inspect(dir)
	if err != nil {
		return err
	}
	powered, err := sim.Powered(dir)
	if err != nil {
		return err
	}
	machine.Up = machine.Up && powered
	if !n.made {
		if machine.BootID == "" {
			return nil // never booted: it hasn't joined
		}
		if n.file, err = readNodeFile(dir); err != nil {
			return err
		}
		if err := cfg.create(ctx, n); err != nil {
			return err
		}
		n.made = true
	}
	now := cfg.Now()
	want := report(n.name, machine, n.wrote)
	if n.stale || !reflect.DeepEqual(want, n.wrote) {
		if want.Ready != n.wrote.Ready {
			n.since = now
		}
		if err := cfg.writeStatus(ctx, n, want, now); err != nil {
			if apierrors.IsNotFound(err) {
				n.made, n.stale = false, true // deleted by another client: a kubelet joins again
			}
			return err
		}
		n.wrote, n.stale = want, false
		cfg.Log.Info("node", zap.String("node", n.name), zap.String("ready", string(want.Ready)),
			zap.String("why", want.Message), zap.String("boot", want.BootID), zap.String("os", want.OSImage))
	}
	if want.Ready == corev1.ConditionUnknown || now.Sub(n.lease) < cfg.Lease {
		return nil // a stopped kubelet renews nothing
	}
	n.lease = now
	if err := cfg.compare(ctx, n); err != nil {
		return err
	}
	return cfg.renew(ctx, n, now)
}

// compare reads the Node with each lease, as a kubelet does: it is registered
// again if it was deleted, and corrected at the next interval if another
// client wrote it, such as the node controller after a pause.
func (cfg Config) compare(ctx context.Context, n *node) error {
	got, err := cfg.Client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		n.made, n.stale = false, true
		return nil
	}
	if err != nil {
		return fmt.Errorf("read node %s: %w", n.name, err)
	}
	for _, condition := range got.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != n.wrote.Ready {
			n.stale = true
		}
	}
	return nil
}

// report is what the machine's kubelet reports; the last boot and versions of
// a stopped kubelet stay.
func report(name string, m sim.Status, last view) view {
	v := last
	switch {
	case !m.Up:
		v.Ready, v.Reason, v.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "the machine is down"
	case m.NoNetwork:
		v.Ready, v.Reason, v.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "the machine is not reached"
	case m.ServicesStopped:
		v.Ready, v.Reason, v.Message = corev1.ConditionFalse, "KubeletNotReady", "node is shutting down"
	default:
		v = view{
			Ready: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status",
			BootID: m.BootID, MachineID: "sim-" + name, KubeletVersion: m.Document.KubeletVersion, OSImage: m.Document.OSImage,
			Product: m.Document.Product, System: m.Document.Version,
		}
		if v.OSImage == "" {
			v.OSImage = m.Document.Product + " " + m.Document.Version
		}
		if !m.Healthy {
			v.Ready, v.Reason, v.Message = corev1.ConditionFalse, "KubeletNotReady", "the system's own checks fail"
		}
	}
	return v
}

// readNodeFile reads node.json; without one there is nothing to add.
func readNodeFile(dir string) (nodeFile, error) {
	file := nodeFile{Address: "127.0.0.1"}
	data, err := os.ReadFile(filepath.Join(dir, "node.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return file, fmt.Errorf("read node.json: %w", err)
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return file, fmt.Errorf("decode node.json: %w", err)
	}
	return file, nil
}

// labels are the Node's.
func (cfg Config) labels(n *node) map[string]string {
	labels := map[string]string{
		corev1.LabelHostname: n.name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
	}
	maps.Copy(labels, cfg.Labels)
	maps.Copy(labels, n.file.Labels)
	return labels
}
