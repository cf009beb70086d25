// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package controlplane starts a real Kubernetes control plane for tests and
// for the demo: etcd, kube-apiserver, kube-controller-manager and, where pods
// have to run, kube-scheduler and kwok (fake kubelets).
//
// Only the kubelet is fake: role-based access control is enabled, anonymous
// requests are rejected, admission and validation are those of a release. The
// components are child processes of the test binary; the kernel ends them with
// the test binary. Everything listens on loopback only.
//
// A package's tests normally share one control plane:
//
//	func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }
//
//	func TestX(t *testing.T) {
//		c := controlplane.Shared(t)
//		client, err := client.New(c.Config, client.Options{})
//
// with a namespace per test. Start gives a test its own control plane, where
// cluster-scoped state would clash or the API server has to fail.
//
// The components are one multi-call binary (the nested module in multicall),
// compiled once and cached in the user's cache directory under a key of its
// sources: see Ensure.
//
// Cluster has many methods because tests need one handle for a whole control
// plane: its clients, outages, metrics and audit log.
package controlplane
