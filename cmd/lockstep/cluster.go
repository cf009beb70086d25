// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// clusterFlags select the cluster of a command.
type clusterFlags struct {
	kubeconfig string
	context    string
}

func (f *clusterFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "path to the kubeconfig (default: $KUBECONFIG, ~/.kube/config or the pod's service account)")
	cmd.Flags().StringVar(&f.context, "context", "", "name of the kubeconfig context")
}

// config returns the client configuration from the flags, the environment and
// kubectl's defaults, in this order.
func (f *clusterFlags) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cluster configuration: %w; set --kubeconfig or KUBECONFIG", err)
	}
	cfg.QPS = -1
	cfg.UserAgent = "lockstep/" + version
	return cfg, nil
}

// client returns a client that can also watch.
func (f *clusterFlags) client() (client.WithWatch, error) {
	cfg, err := f.config()
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", cfg.Host, err)
	}
	return c, nil
}

// newScheme returns a scheme with the kinds of Kubernetes and of Lockstep.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	return scheme, nil
}

// parseObjectArg parses KIND/NAME: any case, singular, plural or short name of
// Lockstep's kinds.
func parseObjectArg(arg string) (client.Object, error) {
	kind, name, ok := strings.Cut(arg, "/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return nil, invalid(fmt.Errorf("object %q: want KIND/NAME, for example clusterrelease/platform", arg))
	}
	var obj client.Object
	switch strings.ToLower(kind) {
	case "gitsource", "gitsources", "gs":
		obj = &v1alpha1.GitSource{}
	case "clusterrelease", "clusterreleases", "rel", "release":
		obj = &v1alpha1.ClusterRelease{}
	case "nodeos", "nodeoses", "nos":
		obj = &v1alpha1.NodeOS{}
	case "host", "hosts":
		obj = &v1alpha1.Host{}
	case "trustpolicy", "trustpolicies", "tp":
		obj = &v1alpha1.TrustPolicy{}
	default:
		return nil, invalid(fmt.Errorf("kind %q of %s: want gitsource, clusterrelease, nodeos, host or trustpolicy", kind, v1alpha1.Group))
	}
	obj.SetNamespace(v1alpha1.Namespace)
	obj.SetName(name)
	return obj, nil
}

// objectArg is the inverse of parseObjectArg, for messages.
func objectArg(obj client.Object) string {
	kind := "object"
	switch obj.(type) {
	case *v1alpha1.GitSource:
		kind = "gitsource"
	case *v1alpha1.ClusterRelease:
		kind = "clusterrelease"
	case *v1alpha1.NodeOS:
		kind = "nodeos"
	case *v1alpha1.Host:
		kind = "host"
	case *v1alpha1.TrustPolicy:
		kind = "trustpolicy"
	}
	return kind + "/" + obj.GetName()
}

// whoami returns the local user for annotations. It isn't authenticated: the API
// server's audit log has the identity.
func user() string {
	user := os.Getenv("USER")
	if user == "" {
		user = "unknown"
	}
	host, err := os.Hostname()
	if err != nil {
		return user
	}
	return user + "@" + filepath.Base(host)
}
