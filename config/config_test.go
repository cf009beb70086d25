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

// installed returns a control plane with the default base applied.
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

func reconciler(t *testing.T, c *controlplane.Cluster) *rest.Config {
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
		t.Errorf("kubectl knows a kind not by its short name: %v\n%s", err, out)
	}
}

func TestTheReconcilerMayDoItsWorkAndNoMore(t *testing.T) {
	c := installed(t)
	client, err := kubernetes.NewForConfig(reconciler(t, c))
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
		"switch the admission policies off":      {access{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies", Verb: "delete"}, false},
		"make tokens of the applier":             {access{Namespace: namespace, Resource: "serviceaccounts", Subresource: "token", Name: "lockstep-applier", Verb: "create"}, false},
		"run commands in pods":                   {access{Namespace: "web", Resource: "pods", Subresource: "exec", Verb: "create"}, false},
		"bind a pod past the scheduler":          {access{Namespace: "web", Resource: "pods", Subresource: "binding", Verb: "create"}, false},
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
	config := reconciler(t, c)
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

// TestAdmission walks through what people and the reconciler do to objects.
func TestAdmission(t *testing.T) {
	c := installed(t)
	ours, people := dynamicClient(t, reconciler(t, c)), dynamicClient(t, c.Config)
	awaitPolicies(t, people)

	must(t, "the reconciler declares an object from Git", create(t, ours, releases, release("declared", "fleet")))
	must(t, "people declare an object by hand", create(t, people, releases, release("by-hand", "")))
	state := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "lockstep-ledger", "namespace": namespace},
	}}
	must(t, "the reconciler makes the ledger", create(t, ours, configMaps, state))
	policy := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "lockstep.dev/v1alpha1", "kind": v1alpha1.KindTrustPolicy,
		"metadata": map[string]any{"name": "root", "namespace": namespace}, "spec": map[string]any{"envelope": "{}"},
	}}
	must(t, "people carry a trust policy in", create(t, people, policies, policy))

	suspend, status := `{"spec":{"suspend":true}}`, `{"status":{"observedGeneration":1}}`
	must(t, "people change what they declared by hand", patch(t, people, releases, "by-hand", suspend))
	must(t, "the reconciler changes what Git declared", patch(t, ours, releases, "declared", suspend))
	must(t, "people pull a brake", patch(t, people, releases, "declared", `{"metadata":{"annotations":{"lockstep.dev/paused":"me"}}}`))
	must(t, "the reconciler writes status", patch(t, ours, releases, "declared", status, "status"))

	refused(t, "people change what Git declared", patch(t, people, releases, "declared", `{"spec":{"suspend":false}}`), "change it in Git")
	refused(t, "people cut an object from its source",
		patch(t, people, releases, "declared", `{"metadata":{"annotations":{"lockstep.dev/source":null}}}`), "only the reconciler sets it")
	refused(t, "people pretend that Git declared an object", create(t, people, releases, release("forged", "fleet")), "only the reconciler sets it")
	refused(t, "people write status", patch(t, people, releases, "by-hand", status, "status"), "only the reconciler writes status")
	refused(t, "people write the ledger", patch(t, people, configMaps, "lockstep-ledger", `{"data":{"x":"y"}}`), "the reconciler's state")
	refused(t, "people delete the ledger", remove(t, people, configMaps, "lockstep-ledger"), "the reconciler's state")
	refused(t, "people delete the trust policy", remove(t, people, policies, "root"), "changes nothing that is trusted")

	must(t, "people confirm the deletion", patch(t, people, policies, "root", `{"metadata":{"annotations":{"lockstep.dev/prune":"enabled"}}}`))
	must(t, "people delete the trust policy, confirmed", remove(t, people, policies, "root"))
}

func TestTheAdmissionPoliciesTypeCheck(t *testing.T) {
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

func TestTheReconcilersPodIsAdmittedUnderTheRestrictedStandard(t *testing.T) {
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
	eventually(t, "the service account is there and the pod is admitted", func(ctx context.Context) bool {
		_, err = client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil || strings.Contains(err.Error(), "violates PodSecurity")
	})
	if err != nil {
		t.Error(err)
	}
}

// awaitPolicies waits until the API server enforces a new policy; it compiles
// them a moment after they are stored.
func awaitPolicies(t *testing.T, people dynamic.Interface) {
	t.Helper()
	eventually(t, "the admission policies are enforced", func(ctx context.Context) bool {
		_, err := people.Resource(releases).Namespace(namespace).Create(ctx, release("probe", "fleet"),
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

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: refused: %v", what, err)
	}
}

func refused(t *testing.T, what string, err error, message string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), message) {
		t.Errorf("%s: got error %v, want Forbidden with %q", what, err, message)
	}
}

// eventually waits for a condition with a deadline that a loaded machine keeps.
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
