// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

func TestAStoppedKubeletReportsNothing(t *testing.T) {
	up := sim.Status{
		Up: true, Healthy: true, BootID: "boot-1",
		Document: sim.Document{Product: "os", Version: "1.0.0", KubeletVersion: "v1.36.3"},
	}
	first := report("n", up, view{})
	if first.Ready != corev1.ConditionTrue || first.BootID != "boot-1" || first.OSImage != "os 1.0.0" {
		t.Errorf("a machine that is up: %+v", first)
	}
	for name, tc := range map[string]struct {
		change func(*sim.Status)
		want   corev1.ConditionStatus
	}{
		"down":         {func(s *sim.Status) { s.Up, s.BootID = false, "boot-2" }, corev1.ConditionUnknown},
		"unreachable":  {func(s *sim.Status) { s.NoNetwork, s.BootID = true, "boot-2" }, corev1.ConditionUnknown},
		"for upgrades": {func(s *sim.Status) { s.ServicesStopped = true }, corev1.ConditionFalse},
	} {
		now := up
		tc.change(&now)
		if got := report("n", now, first); got.Ready != tc.want || got.BootID != "boot-1" || got.KubeletVersion != "v1.36.3" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	sick := up
	sick.Healthy, sick.BootID = false, "boot-2"
	if got := report("n", sick, first); got.Ready != corev1.ConditionFalse || got.BootID != "boot-2" {
		t.Errorf("an unhealthy system: %+v", got)
	}
}

// machine creates and boots a machine.
func machine(t *testing.T, dir string, doc sim.Document) sim.BootResult {
	t.Helper()
	content, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	image, err := sim.ImageOf("registry.example.com/os", content)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := sim.Create(dir, image, content); err != nil {
		t.Fatal(err)
	}
	return boot(t, dir)
}

func boot(t *testing.T, dir string) sim.BootResult {
	t.Helper()
	result, err := sim.Boot(t.Context(), dir, sim.BootOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestANodeFollowsItsMachineThroughAReboot(t *testing.T) {
	cluster := controlplane.Shared(t)
	client, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	dir := filepath.Join(root, "sim-1")
	first := machine(t, dir, sim.Document{Product: "os", Version: "1.0.0", KubeletVersion: "v1.36.3"})
	if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte(`{"labels":{"pool":"workers"},"address":"127.0.1.1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{Client: client, Root: root, Labels: map[string]string{"test": "simnode"}, Interval: 50 * time.Millisecond, Lease: time.Second, Now: time.Now})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	}()

	until := func(what string, fits func(*corev1.Node) bool) *corev1.Node {
		t.Helper()
		return waitForNode(t, client, "sim-1", what, fits)
	}
	n := until("ready in the first boot", func(n *corev1.Node) bool {
		return ready(n) == corev1.ConditionTrue && n.Status.NodeInfo.BootID == first.BootID
	})
	if n.Labels["pool"] != "workers" || n.Labels["test"] != "simnode" || n.Status.Addresses[0].Address != "127.0.1.1" || n.Status.NodeInfo.KubeletVersion != "v1.36.3" {
		t.Errorf("node = %+v", n)
	}
	lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "sim-1", metav1.GetOptions{})
	if err != nil || lease.Spec.RenewTime == nil {
		t.Errorf("lease = %v, %v", lease, err)
	}

	host, err := sim.Open(sim.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := host.StopServices(ctx); err != nil {
		t.Fatal(err)
	}
	until("not ready without its services", func(n *corev1.Node) bool { return ready(n) == corev1.ConditionFalse })
	if err := host.Restart(ctx, nodeos.RebootRestart); !nodeos.IsRebootError(err) {
		t.Fatal(errors.Join(errors.New("no restart"), err))
	}
	until("unknown while it is down", func(n *corev1.Node) bool {
		return ready(n) == corev1.ConditionUnknown && n.Status.NodeInfo.BootID == first.BootID
	})
	second := boot(t, dir)
	until("ready in the second boot", func(n *corev1.Node) bool {
		return ready(n) == corev1.ConditionTrue && n.Status.NodeInfo.BootID == second.BootID && second.BootID != first.BootID
	})
	if err := client.CoreV1().Nodes().Delete(ctx, "sim-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("registered again after its deletion", func(n *corev1.Node) bool { return ready(n) == corev1.ConditionTrue })
	// A killed supervisor leaves this behind.
	if err := os.WriteFile(filepath.Join(dir, "power.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until("unknown after a power cut", func(n *corev1.Node) bool { return ready(n) == corev1.ConditionUnknown })
}

func ready(n *corev1.Node) corev1.ConditionStatus {
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status
		}
	}
	return ""
}

func waitForNode(t *testing.T, client kubernetes.Interface, name, what string, fits func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && fits(n) {
			return n
		}
		select {
		case <-ctx.Done():
			t.Fatalf("node %s: not %s in 30 s: %v, %+v", name, what, err, n)
		case <-tick.C:
		}
	}
}
