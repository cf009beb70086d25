// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

// live returns a client of the declared kinds at a real API server.
func live(t *testing.T) func(kind string) dynamic.ResourceInterface {
	t.Helper()
	cluster := controlplane.SharedWithKinds(t)
	kube, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	plurals := map[string]string{"GitSource": "gitsources", "ClusterRelease": "clusterreleases", "NodeOS": "nodeoses", "TrustPolicy": "trustpolicies"}
	return func(kind string) dynamic.ResourceInterface {
		return client.Resource(schema.GroupVersionResource{
			Group: v1alpha1.Group, Version: v1alpha1.GroupVersion().Version, Resource: plurals[kind],
		}).Namespace(v1alpha1.Namespace)
	}
}

// TestTheAPIServerKeepsTheDeclaredSpec checks that objects don't appear changed
// (NotFromSource) because of defaults.
func TestTheAPIServerKeepsTheDeclaredSpec(t *testing.T) {
	resource := live(t)
	rich := nodeOS + `  strategy: {maxUnavailable: 10%, canary: [{hosts: 1, soak: 90s}]}
  windows: [{cron: "0 22 * * 6", duration: 6h}]
  gates: {checks: [{name: ready, cel: "true"}]}
  drain: {timeout: 900s}
`
	full := release + `  timeout: 90m
  overrides: [{kind: ConfigMap, namespace: web, name: a, unmanaged: true, expires: 2026-12-24T00:00:00Z}]
  components: [{name: monitoring, onUnhealthy: warn, timeout: 20m}]
`
	state, err := decoder(t).Decode(t.Context(), Request{FS: files("a.yaml", source+"  maxSize: 1024Mi\n  writeBack: {}\n", "b.yaml", rich, "c.yaml", full)})
	if err != nil {
		t.Fatal(err)
	}
	hash := func(u *unstructured.Unstructured) string {
		t.Helper()
		var spec any
		convert := func(into any) {
			t.Helper()
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into); err != nil {
				t.Fatal(err)
			}
		}
		switch u.GetKind() {
		case v1alpha1.KindGitSource:
			var o v1alpha1.GitSource
			convert(&o)
			spec = o.Spec
		case v1alpha1.KindNodeOS:
			var o v1alpha1.NodeOS
			convert(&o)
			spec = o.Spec
		default:
			var o v1alpha1.ClusterRelease
			convert(&o)
			spec = o.Spec
		}
		h, err := SpecHash(spec)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for _, o := range state.Objects {
		got, err := resource(o.Kind).Apply(t.Context(), o.Name, o.Manifest, metav1.ApplyOptions{FieldManager: "peer", Force: true})
		if err != nil {
			t.Errorf("%s/%s: accepted here, but rejected by the API server: %v", o.Kind, o.Name, err)
			continue
		}
		if h := hash(got); h != o.Hash {
			t.Errorf("%s/%s: spec hash %s in the cluster, %s as declared\n%v", o.Kind, o.Name, h, o.Hash, got.Object["spec"])
		}
	}
}

// TestTheAPIServerRejectsTheSameDocuments compares the schema validation of both.
func TestTheAPIServerRejectsTheSameDocuments(t *testing.T) {
	resource := live(t)
	d := decoder(t)
	for name, doc := range map[string]string{
		"a tag for a digest":       strings.Replace(release, digest, ":1.4.2", 1),
		"an unknown field":         strings.Replace(release, "version:", "verson:", 1),
		"neither selector nor all": strings.Replace(nodeOS, "  all: true\n", "", 1),
		"two refs":                 strings.Replace(source, "{branch: main}", "{branch: main, tag: v1}", 1),
		"a path outside":           strings.Replace(source, "clusters/prod", "../x", 1),
		"a password in a URL":      strings.Replace(source, "ssh://git@", "https://u:p@", 1),
		"a deadline too short":     nodeOS + "  commitDeadline: 1m\n",
		"an invalid enum value":    nodeOS + "  onFailure: Shrug\n",
		"a policy by another name": "apiVersion: lockstep.dev/v1alpha1\nkind: TrustPolicy\nmetadata: {name: mine}\nspec: {envelope: x}\n",
	} {
		if _, err := d.Decode(t.Context(), Request{FS: files("a.yaml", doc)}); err == nil {
			t.Errorf("%s: accepted here", name)
		}
		var u unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatal(err)
		}
		u.SetName(u.GetName() + "-refused")
		data, err := u.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		_, err = resource(u.GetKind()).Patch(t.Context(), u.GetName(), types.ApplyPatchType, data,
			metav1.PatchOptions{FieldManager: "peer", FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			t.Errorf("%s: accepted by the API server", name)
		}
	}
}
