// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

const namespace = v1alpha1.Namespace

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

// installed returns a control plane on which the default base is applied.
func installed(t *testing.T) *controlplane.Cluster {
	t.Helper()
	c := controlplane.Shared(t)
	if err := c.Apply(t.Context(), render(t)); err != nil {
		t.Fatal(err)
	}
	return c
}

func render(t *testing.T) []byte {
	t.Helper()
	memory := filesys.MakeFsInMemory()
	err := fs.WalkDir(FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(FS(), path)
		if err != nil {
			return err
		}
		return memory.WriteFile("/"+path, data)
	})
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(memory, "/"+Default)
	if err != nil {
		t.Fatal(err)
	}
	data, err := rendered.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func reconcilerConfig(t *testing.T, c *controlplane.Cluster) *rest.Config {
	t.Helper()
	config, err := c.ConfigForServiceAccount(namespace, "lockstep-reconciler")
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestKubectlAppliesTheDefaultBase(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("kubectl isn't installed; the other tests apply the same base without it")
	}
	c := installed(t)
	out, err := exec.CommandContext(t.Context(), kubectl, "--kubeconfig", c.Kubeconfig(),
		"apply", "--server-side", "--force-conflicts", "-k", Default).CombinedOutput()
	if err != nil {
		t.Errorf("kubectl apply -k %s: %v\n%s", Default, err, out)
	}
	out, err = exec.CommandContext(t.Context(), kubectl, "--kubeconfig", c.Kubeconfig(),
		"-n", namespace, "get", "rel,nos,gs,tp,hosts.lockstep.dev").CombinedOutput()
	if err != nil {
		t.Errorf("kubectl get by short names: %v\n%s", err, out)
	}
}

func TestTheReconcilerHasExactlyItsPermissions(t *testing.T) {
	c := installed(t)
	client, err := kubernetes.NewForConfig(reconcilerConfig(t, c))
	if err != nil {
		t.Fatal(err)
	}
	type access = authorizationv1.ResourceAttributes
	for name, tc := range map[string]struct {
		access access
		want   bool
	}{
		"write a declared object":                {access{Namespace: namespace, Group: v1alpha1.Group, Resource: "clusterreleases", Verb: "patch"}, true},
		"write a status":                         {access{Namespace: namespace, Group: v1alpha1.Group, Resource: "hosts", Subresource: "status", Verb: "patch"}, true},
		"write the ledger":                       {access{Namespace: namespace, Resource: "configmaps", Name: "lockstep-ledger", Verb: "update"}, true},
		"hold the lease":                         {access{Namespace: namespace, Group: "coordination.k8s.io", Resource: "leases", Verb: "update"}, true},
		"read a credential":                      {access{Namespace: namespace, Resource: "secrets", Name: "fleet-git", Verb: "get"}, true},
		"cordon a node":                          {access{Resource: "nodes", Verb: "patch"}, true},
		"evict a pod":                            {access{Namespace: "web", Resource: "pods", Subresource: "eviction", Verb: "create"}, true},
		"watch any kind":                         {access{Group: "example.com", Resource: "widgets", Verb: "watch"}, true},
		"impersonate the applier":                {access{Namespace: namespace, Resource: "serviceaccounts", Name: "lockstep-applier", Verb: "impersonate"}, true},
		"impersonate another account":            {access{Namespace: "kube-system", Resource: "serviceaccounts", Name: "default", Verb: "impersonate"}, false},
		"impersonate a user":                     {access{Resource: "users", Name: "admin", Verb: "impersonate"}, false},
		"impersonate a group":                    {access{Resource: "groups", Name: "system:masters", Verb: "impersonate"}, false},
		"apply a release's object as itself":     {access{Namespace: "web", Group: "apps", Resource: "deployments", Verb: "patch"}, false},
		"write a secret":                         {access{Namespace: namespace, Resource: "secrets", Verb: "create"}, false},
		"write declared objects elsewhere":       {access{Namespace: "web", Group: v1alpha1.Group, Resource: "nodeoses", Verb: "create"}, false},
		"delete a node":                          {access{Resource: "nodes", Verb: "delete"}, false},
		"change its own role":                    {access{Namespace: namespace, Group: "rbac.authorization.k8s.io", Resource: "roles", Verb: "patch"}, false},
		"delete the admission policies":          {access{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies", Verb: "delete"}, false},
		"create tokens for the applier":          {access{Namespace: namespace, Resource: "serviceaccounts", Subresource: "token", Name: "lockstep-applier", Verb: "create"}, false},
		"run commands in pods":                   {access{Namespace: "web", Resource: "pods", Subresource: "exec", Verb: "create"}, false},
		"bind a pod to a node":                   {access{Namespace: "web", Resource: "pods", Subresource: "binding", Verb: "create"}, false},
		"approve certificates for agents itself": {access{Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: "approval", Verb: "update"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(),
				&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &tc.access}},
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if review.Status.Allowed != tc.want {
				t.Errorf("allowed: %v, want %v", review.Status.Allowed, tc.want)
			}
		})
	}
}

func TestTheReconcilerAppliesByImpersonationOnly(t *testing.T) {
	c := installed(t)
	put := func(config *rest.Config) error {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "released-"}}, metav1.CreateOptions{})
		return err
	}
	config := reconcilerConfig(t, c)
	if err := put(config); !apierrors.IsForbidden(err) {
		t.Errorf("as itself: got %v, want Forbidden", err)
	}
	config.Impersonate.UserName = "system:serviceaccount:" + namespace + ":lockstep-applier"
	if err := put(config); err != nil {
		t.Errorf("as the applier: %v", err)
	}
	config.Impersonate.UserName = "system:serviceaccount:kube-system:default"
	if err := put(config); !apierrors.IsForbidden(err) {
		t.Errorf("as another account: got %v, want Forbidden", err)
	}
}

var (
	releases   = schema.GroupVersionResource{Group: v1alpha1.Group, Version: "v1alpha1", Resource: "clusterreleases"}
	policies   = schema.GroupVersionResource{Group: v1alpha1.Group, Version: "v1alpha1", Resource: "trustpolicies"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

const image = "registry.example.com/release@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func release(name, source string) *unstructured.Unstructured {
	r := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "lockstep.dev/v1alpha1", "kind": v1alpha1.KindClusterRelease,
		"metadata": map[string]any{"name": name, "namespace": namespace},
		"spec":     map[string]any{"desired": map[string]any{"version": "1.0.0", "image": image}},
	}}
	if source != "" {
		r.SetAnnotations(map[string]string{v1alpha1.AnnotationSource: source})
	}
	return r
}

// TestAdmission tests the writes of users and of the reconciler.
func TestAdmission(t *testing.T) {
	c := installed(t)
	reconciler, user := dynamicClient(t, reconcilerConfig(t, c)), dynamicClient(t, c.Config)
	awaitPolicies(t, user)

	requireAdmitted(t, "the reconciler declares an object from Git", create(t, reconciler, releases, release("declared", "fleet")))
	requireAdmitted(t, "a user creates an object by hand", create(t, user, releases, release("by-hand", "")))
	states := []string{"lockstep-ledger", "lockstep-state", "lockstep-state-source-fleet", "lockstep-state-release-platform"}
	for _, name := range states {
		state := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": namespace},
		}}
		requireAdmitted(t, "the reconciler creates "+name, create(t, reconciler, configMaps, state))
	}
	policy := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "lockstep.dev/v1alpha1", "kind": v1alpha1.KindTrustPolicy,
		"metadata": map[string]any{"name": "root", "namespace": namespace}, "spec": map[string]any{"envelope": "{}"},
	}}
	requireAdmitted(t, "a user creates the trust policy", create(t, user, policies, policy))

	suspend, status := `{"spec":{"suspend":true}}`, `{"status":{"observedGeneration":1}}`
	requireAdmitted(t, "a user changes an object created by hand", patch(t, user, releases, "by-hand", suspend))
	requireAdmitted(t, "the reconciler changes an object from Git", patch(t, reconciler, releases, "declared", suspend))
	requireAdmitted(t, "a user pauses an object from Git", patch(t, user, releases, "declared", `{"metadata":{"annotations":{"lockstep.dev/paused":"me"}}}`))
	requireAdmitted(t, "the reconciler writes status", patch(t, reconciler, releases, "declared", status, "status"))

	requireForbidden(t, "a user changes an object from Git", patch(t, user, releases, "declared", `{"spec":{"suspend":false}}`), "change it in Git")
	requireForbidden(t, "a user removes the source annotation",
		patch(t, user, releases, "declared", `{"metadata":{"annotations":{"lockstep.dev/source":null}}}`), "only the reconciler sets it")
	requireForbidden(t, "a user forges the source annotation", create(t, user, releases, release("forged", "fleet")), "only the reconciler sets it")
	requireForbidden(t, "a user writes status", patch(t, user, releases, "by-hand", status, "status"), "only the reconciler writes status")
	for _, name := range states {
		requireForbidden(t, "a user writes "+name, patch(t, user, configMaps, name, `{"data":{"x":"y"}}`), "the reconciler's state")
		requireForbidden(t, "a user deletes "+name, remove(t, user, configMaps, name), "the reconciler's state")
	}
	requireForbidden(t, "a user deletes the trust policy", remove(t, user, policies, "root"), "does not revoke trust")

	requireAdmitted(t, "a user confirms the deletion", patch(t, user, policies, "root", `{"metadata":{"annotations":{"lockstep.dev/prune":"enabled"}}}`))
	requireAdmitted(t, "a user deletes the trust policy after confirmation", remove(t, user, policies, "root"))
}

func TestTheAdmissionPoliciesPassTypeChecking(t *testing.T) {
	c := installed(t)
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lockstep-status", "lockstep-source", "lockstep-state", "lockstep-trust"} {
		eventually(t, name+" is type-checked", func(ctx context.Context) bool {
			p, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
			if err != nil || p.Status.TypeChecking == nil {
				return false
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				t.Errorf("%s: %s: %s", name, w.FieldRef, w.Warning)
			}
			return true
		})
	}
}

func TestTheReconcilerPodIsAdmittedUnderTheRestrictedStandard(t *testing.T) {
	c := installed(t)
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	deployment, err := client.AppsV1().Deployments(namespace).Get(t.Context(), "lockstep-reconciler", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: deployment.Spec.Template.Spec}
	eventually(t, "the service account exists and the pod is admitted", func(ctx context.Context) bool {
		_, err = client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil || strings.Contains(err.Error(), "violates PodSecurity")
	})
	if err != nil {
		t.Error(err)
	}
}

// awaitPolicies waits until the API server enforces a new policy, which it
// compiles after storing it.
func awaitPolicies(t *testing.T, user dynamic.Interface) {
	t.Helper()
	eventually(t, "the admission policies are enforced", func(ctx context.Context) bool {
		_, err := user.Resource(releases).Namespace(namespace).Create(ctx, release("probe", "fleet"),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err)
	})
}

func dynamicClient(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func create(t *testing.T, c dynamic.Interface, r schema.GroupVersionResource, o *unstructured.Unstructured) error {
	t.Helper()
	_, err := c.Resource(r).Namespace(namespace).Create(t.Context(), o, metav1.CreateOptions{})
	return err
}

func patch(t *testing.T, c dynamic.Interface, r schema.GroupVersionResource, name, body string, sub ...string) error {
	t.Helper()
	_, err := c.Resource(r).Namespace(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...)
	return err
}

func remove(t *testing.T, c dynamic.Interface, r schema.GroupVersionResource, name string) error {
	t.Helper()
	return c.Resource(r).Namespace(namespace).Delete(t.Context(), name, metav1.DeleteOptions{})
}

func requireAdmitted(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: rejected: %v", what, err)
	}
}

func requireForbidden(t *testing.T, what string, err error, message string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), message) {
		t.Errorf("%s: got error %v, want Forbidden with %q", what, err, message)
	}
}

// eventually waits up to a minute for a condition, enough for a loaded machine.
func eventually(t *testing.T, what string, check func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for !check(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("wait until %s: %v", what, ctx.Err())
		case <-ticker.C:
		}
	}
}
