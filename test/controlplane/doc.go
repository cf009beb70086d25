// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package controlplane starts a real Kubernetes control plane for tests and
// for the demonstration: etcd, kube-apiserver, kube-controller-manager and,
// where pods have to run, kube-scheduler and kwok (fake kubelets).
//
// Nothing is faked above the kubelet: role-based access control is on,
// anonymous requests are refused, admission and validation are those of a
// release. The components are child processes of the test binary; the kernel
// ends them when the test binary ends, however it ends, so that nothing is left
// running. Everything listens on loopback only.
//
// A package's tests normally share one control plane:
//
//	func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }
//
//	func TestX(t *testing.T) {
//		c := controlplane.Shared(t)
//		client, err := client.New(c.Config, client.Options{})
//
// with a namespace of its own for each test. Start gives a test one of its own,
// where cluster-scoped state would clash or the API server has to fail.
//
// The components come from one multi-call binary (the nested module in
// multicall), compiled once and kept in the user's cache directory under a key
// of its sources: see Ensure.
package controlplane
