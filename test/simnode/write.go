// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// leaseSeconds is how long a lease holds, as a kubelet's.
const leaseSeconds = 40

// create registers the Node. An existing one is kept: a kubelet doesn't remove
// cordons and labels of others.
func (cfg Config) create(ctx context.Context, n *node) error {
	made := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: cfg.labels(n)},
		Spec:       corev1.NodeSpec{Taints: n.file.Taints, ProviderID: "sim://" + n.name},
	}
	_, err := cfg.Client.CoreV1().Nodes().Create(ctx, made, metav1.CreateOptions{FieldManager: "kubelet"})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("register node %s: %w", n.name, err)
	}
	return nil
}

// writeStatus patches the status as a kubelet does: conditions merge by type.
func (cfg Config) writeStatus(ctx context.Context, n *node, v view, now time.Time) error {
	data, err := json.Marshal(map[string]any{"status": status(n, v, now)})
	if err != nil {
		return fmt.Errorf("encode the status of node %s: %w", n.name, err)
	}
	_, err = cfg.Client.CoreV1().Nodes().Patch(ctx, n.name, types.StrategicMergePatchType, data,
		metav1.PatchOptions{FieldManager: "kubelet"}, "status")
	if err != nil {
		return fmt.Errorf("write the status of node %s: %w", n.name, err)
	}
	return nil
}

func status(n *node, v view, now time.Time) corev1.NodeStatus {
	beat, since := metav1.NewTime(now), metav1.NewTime(n.since)
	condition := func(kind corev1.NodeConditionType, is corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		if v.Ready == corev1.ConditionUnknown {
			is, reason, message = corev1.ConditionUnknown, v.Reason, v.Message
		}
		return corev1.NodeCondition{Type: kind, Status: is, Reason: reason, Message: message, LastHeartbeatTime: beat, LastTransitionTime: since}
	}
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	return corev1.NodeStatus{
		Capacity: resources, Allocatable: resources,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.file.Address}, {Type: corev1.NodeHostName, Address: n.name}},
		Conditions: []corev1.NodeCondition{
			condition(corev1.NodeReady, v.Ready, v.Reason, v.Message),
			condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
			condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
			condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: v.MachineID, SystemUUID: v.MachineID, BootID: v.BootID, KernelVersion: "sim", OSImage: v.OSImage,
			ContainerRuntimeVersion: "sim://1", KubeletVersion: v.KubeletVersion, OperatingSystem: "linux", Architecture: "amd64",
		},
	}
}

// renew renews or creates the lease.
func (cfg Config) renew(ctx context.Context, n *node, now time.Time) error {
	leases := cfg.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	beat, seconds := metav1.NewMicroTime(now), int32(leaseSeconds)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &n.name, LeaseDurationSeconds: &seconds, RenewTime: &beat}
	data, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return fmt.Errorf("encode the lease of node %s: %w", n.name, err)
	}
	_, err = leases.Patch(ctx, n.name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: "kubelet"})
	if apierrors.IsNotFound(err) {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: spec}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{FieldManager: "kubelet"})
	}
	if err != nil {
		return fmt.Errorf("renew the lease of node %s: %w", n.name, err)
	}
	return nil
}
