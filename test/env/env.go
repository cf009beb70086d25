// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/lockstep-dev/lockstep/config"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// Cluster is the name of the environment's cluster.
const Cluster = "prod"

// Options configure an environment.
type Options struct {
	// Dir is an empty directory for everything; required.
	Dir string
	// Bin is the directory of the built programs; required.
	Bin string
	// Hosts is the number of hosts; 0 for releases only, with a light control
	// plane.
	Hosts int
	// Log receives a line for each part that starts; nil for none.
	Log func(format string, args ...any)
	// MinInterval between status commits; zero: one second.
	MinInterval string
	// Pods runs pods on nodes that Control.AddNodes creates; with hosts they
	// run anyway.
	Pods bool
	// Audit makes the API server log each request; Control.MarkAudit reads it.
	Audit bool
}

// Env is a running environment. Its methods aren't safe for concurrent use
// unless they only read.
type Env struct {
	Dir     string
	Client  client.Client
	Control *controlplane.Cluster
	Git     *Git
	Reg     *Registry
	// Reconciler is the process; nil while it's stopped.
	Reconciler *Process
	// Hosts by name, node-1 and so on.
	Hosts map[string]*Host

	opts       Options
	trustRoot  string // digest of the trust document
	clusterUID string
	simnode    *Process
	simDigest  string
}

// Host is a simulated machine with its agent.
type Host struct {
	Name    string
	Address string
	// Agent is the machine's power and agent; nil while it's off.
	Agent *Process
	dir   string
	args  []string
}

// New starts an environment: control plane, Git, registry, trust, hosts.
// StartReconciler starts the reconciler. After an error everything is stopped.
func New(ctx context.Context, opts Options) (_ *Env, err error) {
	if opts.Log == nil {
		opts.Log = func(string, ...any) {}
	}
	// controller-runtime complains on standard error without a logger.
	ctrllog.SetLogger(logr.Discard())
	w := &Env{Dir: opts.Dir, opts: opts, Hosts: map[string]*Host{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	profile := controlplane.Light
	if opts.Hosts > 0 || opts.Pods {
		profile = controlplane.Full
	}
	if w.Reg, err = newRegistry(ctx); err != nil {
		return nil, err
	}
	if w.Git, err = newGit(ctx, opts.Dir); err != nil {
		return nil, err
	}
	opts.Log("Git server at %s, registry at %s", w.Git.URL, w.Reg.Host)
	control := controlplane.Options{Profile: profile, Dir: filepath.Join(opts.Dir, "controlplane")}
	if opts.Audit {
		control.AuditLog = filepath.Join(opts.Dir, "audit.log")
	}
	if w.Control, err = controlplane.Start(ctx, control); err != nil {
		return nil, err
	}
	if w.Client, err = newClient(w.Control); err != nil {
		return nil, err
	}
	opts.Log("control plane at %s", w.Control.URL)
	if err := w.install(ctx); err != nil {
		return nil, err
	}
	if err := w.initTrust(ctx); err != nil {
		return nil, err
	}
	if err := w.secrets(ctx); err != nil {
		return nil, err
	}
	return w, w.initHosts(ctx)
}

func newClient(c *controlplane.Cluster) (client.Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
	}
	out, err := client.New(c.Config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return out, nil
}

// Close stops everything that the environment started, in reverse order.
func (w *Env) Close() error {
	var errs []error
	if w.Reconciler != nil {
		errs = append(errs, w.Reconciler.Stop(10*time.Second))
	}
	for _, h := range w.Hosts {
		if h.Agent != nil {
			errs = append(errs, h.Agent.Stop(10*time.Second))
		}
	}
	if w.simnode != nil {
		errs = append(errs, w.simnode.Stop(5*time.Second))
	}
	if w.Control != nil {
		errs = append(errs, w.Control.Stop())
	}
	if w.Git != nil {
		w.Git.close()
	}
	if w.Reg != nil {
		w.Reg.close()
	}
	return errors.Join(errs...)
}

// Path names a file in the environment's directory.
func (w *Env) Path(elem ...string) string {
	return filepath.Join(append([]string{w.Dir}, elem...)...)
}

// Lockstep runs the command line and returns its output.
func (w *Env) Lockstep(ctx context.Context, args ...string) (string, error) {
	return runIn(ctx, w.Dir, []string{"KUBECONFIG=" + w.Control.Kubeconfig()}, filepath.Join(w.opts.Bin, "lockstep"), args...)
}

// install applies config/default except the reconciler's Deployment: the
// reconciler is a process of this machine.
func (w *Env) install(ctx context.Context) error {
	files := filesys.MakeFsInMemory()
	if err := copyFS(files, config.FS(), "."); err != nil {
		return err
	}
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, config.Default)
	if err != nil {
		return fmt.Errorf("render %s: %w", config.Default, err)
	}
	var docs []string
	for _, r := range rendered.Resources() {
		if r.GetKind() == "Deployment" {
			continue
		}
		raw, err := r.AsYAML()
		if err != nil {
			return fmt.Errorf("render %s: %w", r.GetName(), err)
		}
		docs = append(docs, string(raw))
	}
	if err := w.Control.Apply(ctx, []byte(strings.Join(docs, "---\n"))); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	var ns corev1.Namespace
	if err := w.Client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &ns); err != nil {
		return fmt.Errorf("identity of the cluster: %w", err)
	}
	w.clusterUID = string(ns.UID)
	w.opts.Log("Lockstep's kinds, roles and admission policies are installed")
	return nil
}

// initTrust creates keys and the trust document, and applies it.
func (w *Env) initTrust(ctx context.Context) error {
	out, err := w.Lockstep(ctx, "trust", "init", "--profile", "solo", "--dir", w.Path("trust"), "--cluster", Cluster,
		"--product", "platform", "--product", "site", "--product", "lab", "--product", "gateway", "--product", "certificates", "--product", "metrics", "--os-product", "platform-os", "--source", strings.TrimSuffix(w.Git.URL, "fleet.git"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		if digest := strings.TrimSpace(line); strings.HasPrefix(digest, "sha256:") {
			w.trustRoot = digest
		}
	}
	if w.trustRoot == "" {
		return fmt.Errorf("lockstep trust init printed no digest:\n%s", out)
	}
	raw, err := os.ReadFile(w.Path("trust", "trustpolicy.yaml"))
	if err != nil {
		return fmt.Errorf("trust policy: %w", err)
	}
	if err := w.Control.Apply(ctx, raw); err != nil {
		return fmt.Errorf("trust policy: %w", err)
	}
	w.opts.Log("trust initialised, pinned as %s", w.trustRoot)
	return nil
}

// Key is the path of a private key of trust init: admin or release.
func (w *Env) Key(name string) string { return w.Path("trust", name+".key") }

// TrustRoot is the digest of the first trust document.
func (w *Env) TrustRoot() string { return w.trustRoot }

// ClusterUID identifies the cluster to agents.
func (w *Env) ClusterUID() string { return w.clusterUID }

// secrets creates the credentials, each bound to its use and host.
func (w *Env) secrets(ctx context.Context) error {
	host := strings.TrimSuffix(strings.TrimPrefix(w.Git.URL, "https://"), "/platform/fleet.git")
	if _, err := NewSSHKey(w.Path("status-signing"), "status of "+Cluster); err != nil {
		return err
	}
	signing, err := os.ReadFile(w.Path("status-signing"))
	if err != nil {
		return fmt.Errorf("status key: %w", err)
	}
	login := map[string][]byte{"username": []byte(gitUser), "password": []byte(gitPassword), "ca.crt": w.Git.CA}
	for _, s := range []struct {
		name, use, hosts string
		data             map[string][]byte
	}{
		{"fleet-git", v1alpha1.UseGitRead, host, login},
		{"fleet-git-status", v1alpha1.UseGitStatus, host, login},
		{"status-signing", v1alpha1.UseStatusSigning, "", map[string][]byte{"identity": signing}},
	} {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: v1alpha1.Namespace, Name: s.name,
				Annotations: map[string]string{v1alpha1.AnnotationUse: s.use, v1alpha1.AnnotationHosts: s.hosts},
			},
			Data: s.data,
		}
		if err := w.Client.Create(ctx, secret); err != nil {
			return fmt.Errorf("secret %s: %w", s.name, err)
		}
	}
	return nil
}

// GitSource is the source that reads the environment's repository, verified.
func (w *Env) GitSource() *v1alpha1.GitSource {
	interval := w.opts.MinInterval
	if interval == "" {
		interval = "1s"
	}
	d, err := time.ParseDuration(interval)
	if err != nil {
		d = time.Second
	}
	return &v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "fleet"},
		Spec: v1alpha1.GitSourceSpec{
			Cluster: Cluster, URL: w.Git.URL, Ref: v1alpha1.GitRef{Branch: "main"}, Path: "clusters/" + Cluster,
			Interval: metav1.Duration{Duration: 2 * time.Second}, Timeout: metav1.Duration{Duration: 30 * time.Second},
			SecretRef: &v1alpha1.LocalRef{Name: "fleet-git"},
			Verify:    &v1alpha1.GitVerify{Mode: "head"},
			WriteBack: &v1alpha1.WriteBack{
				SecretRef: &v1alpha1.LocalRef{Name: "fleet-git-status"}, SigningKeyRef: &v1alpha1.LocalRef{Name: "status-signing"},
				MinInterval: metav1.Duration{Duration: d},
			},
		},
	}
}

// StartReconciler starts the reconciler as its own service account, with its
// real, small role. Extra arguments come last.
func (w *Env) StartReconciler(args ...string) error {
	p, err := w.startReconciler("reconciler", args...)
	w.Reconciler = p
	return err
}

// IsReconciler reports whether a request came from the reconciler, as itself
// or as the applier account.
func IsReconciler(a controlplane.Audited) bool {
	const account = "system:serviceaccount:" + v1alpha1.Namespace + ":"
	for _, who := range []string{account + "lockstep-reconciler", account + "lockstep-applier"} {
		if a.User == who || a.As == who {
			return true
		}
	}
	return false
}

// StartSecondReconciler starts another one with its own state; the caller
// stops it.
func (w *Env) StartSecondReconciler() (*Process, error) { return w.startReconciler("reconciler-2") }

func (w *Env) startReconciler(name string, args ...string) (*Process, error) {
	cfg, err := w.Control.ConfigForServiceAccount(v1alpha1.Namespace, "lockstep-reconciler")
	if err != nil {
		return nil, fmt.Errorf("credentials of the reconciler: %w", err)
	}
	kubeconfig := w.Path(name + ".kubeconfig")
	if err := controlplane.WriteKubeconfig(kubeconfig, cfg); err != nil {
		return nil, fmt.Errorf("kubeconfig of the reconciler: %w", err)
	}
	full := []string{
		"--kubeconfig", kubeconfig, "--state-dir", w.Path(name + "-state"), "--trust-root-digest", w.trustRoot,
		"--allow-loopback-registries", "--metrics-address", "0", "--health-address", "0", "--log-level", "debug",
		"--lease-duration", "5s", "--cluster-uid", w.clusterUID,
	}
	if len(w.Hosts) > 0 {
		full = append(full, "--pki-dir", w.Path("pki", "callers", "reconciler"))
	}
	return start(w.Dir, name, nil, filepath.Join(w.opts.Bin, "lockstep-reconciler"), append(full, args...)...)
}

// Wait polls until check returns nil, and returns its last error at the
// deadline. It is for conditions of the whole system that no single watch
// reports.
func Wait(ctx context.Context, timeout time.Duration, check func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	last := errors.New("not checked yet")
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", timeout, last)
		case <-ticker.C:
		}
	}
}
