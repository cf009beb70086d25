// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command controlplane is etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler in one binary, chosen by its first argument, so that a test
// machine needs one build and one file for a real Kubernetes control plane.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // for --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics of the components
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// main constructs only the component that was asked for: each of the three
// Kubernetes commands installs the process's signal handler when it is made,
// and the second installation panics.
func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if name != "etcd" && component(name) == nil {
		if len(args) == 0 {
			fmt.Fprintln(os.Stderr, "controlplane: name a component: etcd, kube-apiserver, kube-controller-manager or kube-scheduler")
			os.Exit(2)
		}
		name, args = args[0], args[1:]
	}
	if name == "etcd" {
		etcdmain.Main(append([]string{name}, args...))
		return
	}
	build := component(name)
	if build == nil {
		fmt.Fprintf(os.Stderr, "controlplane: unknown component %q\n", name)
		os.Exit(2)
	}
	os.Args = append([]string{name}, args...)
	os.Exit(cli.Run(build()))
}

func component(name string) func() *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand
	case "kube-controller-manager":
		return kcm.NewControllerManagerCommand
	case "kube-scheduler":
		return func() *cobra.Command { return scheduler.NewSchedulerCommand() }
	}
	return nil
}
