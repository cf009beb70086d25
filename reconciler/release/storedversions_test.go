// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
	"github.com/lockstep-dev/lockstep/test/controlenv"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

const gadgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.stored.example.com}
spec:
  group: stored.example.com
  scope: Namespaced
  names: {kind: Gadget, listKind: GadgetList, plural: gadgets, singular: gadget}
  versions:
`

func gadgetVersion(name string, storage bool) string {
	stored := "false"
	if storage {
		stored = "true"
	}
	return "  - {name: " + name + ", served: true, storage: " + stored + ", schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}\n"
}

func releaseOf(t *testing.T, version, text string) *payload.Payload {
	t.Helper()
	var obj map[string]any
	must(t, yaml.Unmarshal([]byte(text), &obj))
	m, err := payload.NewManifest(&unstructured.Unstructured{Object: obj})
	must(t, err)
	return &payload.Payload{Version: version, Manifests: []payload.Manifest{m}}
}

// The API server rejects the removal of a stored version too, but only once the
// release is partly applied.
func TestARollbackThatRemovesAStoredVersionIsRejectedBeforeAnyWrite(t *testing.T) {
	cluster := controlplane.SharedWithKinds(t)
	b := controlenv.New(t)
	engine, cache := newEngine(t, "stored")
	scheme := k8sruntime.NewScheme()
	must(t, apiextensionsv1.AddToScheme(scheme))
	must(t, corev1.AddToScheme(scheme))
	reader, err := client.New(cluster.Config, client.Options{Scheme: scheme})
	must(t, err)
	versions, err := discovery.NewDiscoveryClientForConfig(cluster.Config)
	must(t, err)
	c := &checks{
		clusterName: func() string { return "" }, now: time.Now,
		name: "stored", engine: engine, store: b.Store, policy: func() *trust.Document { return nil }, live: cache, reader: reader, cached: b.Reader,
		version: versions, rejected: func(string) {},
	}
	old := releaseOf(t, "1.0.0", gadgets+gadgetVersion("v1alpha1", true))
	next := releaseOf(t, "1.1.0", gadgets+gadgetVersion("v1alpha1", false)+gadgetVersion("v1", true))
	build := builderOf(t, engine, cache)
	for _, release := range []*payload.Payload{old, next} {
		if violations := violationsOf(t, c, release); len(violations) > 0 {
			t.Fatalf("%s: violations of the update: %v", release.Version, violations)
		}
		must(t, build.Begin(t.Context(), release))
		_, err := build.Apply(t.Context(), &release.Manifests[0], payload.Reconciling)
		must(t, err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	id := client.ObjectKey{Name: "gadgets.stored.example.com"}
	deadline := time.Now().Add(30 * time.Second)
	for len(crd.Status.StoredVersions) < 2 {
		if time.Now().After(deadline) {
			t.Fatalf("stored versions: %v", crd.Status.StoredVersions)
		}
		must(t, reader.Get(t.Context(), id, &crd))
	}
	before := crd.ResourceVersion
	violations := violationsOf(t, c, old)
	if len(violations) != 1 || !strings.Contains(violations[0].Message, "gadgets.stored.example.com drops v1") {
		t.Errorf("violations of the rollback: %v, want the stored version v1", violations)
	}
	must(t, reader.Get(t.Context(), id, &crd))
	if crd.ResourceVersion != before {
		t.Error("the CustomResourceDefinition was written")
	}
	if _, err := build.Apply(t.Context(), &old.Manifests[0], payload.Reconciling); err == nil {
		t.Error("the API server accepts the rollback, so the check is unnecessary")
	}
	must(t, client.IgnoreNotFound(reader.Delete(t.Context(), &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: id.Name}})))
}

// violationsOf returns the violations of the check StoredVersions.
func violationsOf(t *testing.T, c *checks, release *payload.Payload) (out []precondition.Violation) {
	t.Helper()
	all, err := c.Check(t.Context(), worker.Desired{Identity: payload.Identity{Version: release.Version}}, release, worker.Current{})
	must(t, err)
	for _, v := range all {
		if v.Name == precondition.StoredVersions {
			out = append(out, v)
		}
	}
	return out
}
