// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Two kwok processes share the nodes by NodeLabel: one simulates whole
// kubelets and renews leases, the other simulates pods on the nodes of hosts
// under test and never writes a Node or a Lease.
const (
	kwokNodes = "kwok-nodes"
	kwokPods  = "kwok-pods"
)

// kwokNodeStages move the nodes that have NodeLabel.
//
//go:embed stages/node.yaml
var kwokNodeStages string

// kwokPodStages move pods; they serve both processes.
//
//go:embed stages/pod.yaml
var kwokPodStages string

// kwokIdleStage matches no node. kwok manages the pods of a node only if it
// has a stage for nodes.
//
//go:embed stages/idle.yaml
var kwokIdleStage string

// startFull starts the scheduler and the fake kubelets, and creates the nodes.
func (c *Cluster) startFull(ctx context.Context) error {
	if err := errors.Join(
		writeFile(c.file(kwokNodes+".yaml"), []byte(kwokNodeStages+"---\n"+kwokPodStages)),
		writeFile(c.file(kwokPods+".yaml"), []byte(kwokIdleStage+"---\n"+kwokPodStages)),
	); err != nil {
		return err
	}
	for _, component := range []string{scheduler, kwokNodes, kwokPods} {
		if err := c.startComponent(component); err != nil {
			return err
		}
	}
	return c.AddNodes(ctx, c.opts.Nodes, nil)
}

func (c *Cluster) kwokArguments(component string) []string {
	arguments := []string{
		c.kwok, "--kubeconfig=" + c.Kubeconfig(), "--config=" + c.file(component+".yaml"),
		"--node-ip=127.0.0.1", "--server-address=127.0.0.1:0",
	}
	if component == kwokNodes {
		// A longer lease outlasts the controller-manager's grace period, and
		// pods that it marks unready stay so.
		return append(arguments, "--manage-nodes-with-label-selector="+NodeLabel, "--node-lease-duration-seconds=40")
	}
	return append(arguments, "--manage-nodes-with-label-selector=!"+NodeLabel, "--node-lease-duration-seconds=0")
}

// AddNodes creates count nodes fake-0, fake-1, … that kwok simulates, with
// labels besides NodeLabel. It doesn't wait until they are ready. Existing
// nodes are left unchanged. Only a Full control plane simulates them.
func (c *Cluster) AddNodes(ctx context.Context, count int, labels map[string]string) error {
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	for i := range count {
		name := fmt.Sprintf("fake-%d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{NodeLabel: "kwok", corev1.LabelHostname: name},
		}}
		maps.Copy(node.Labels, labels)
		_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make node %s: %w", name, err)
		}
	}
	return nil
}
