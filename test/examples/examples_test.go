// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package examples tests the files in the folder examples.
package examples

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

const folder = "../../examples"

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

func TestTheAPIServerAdmitsTheFleet(t *testing.T) {
	client, err := dynamic.NewForConfig(controlplane.SharedWithKinds(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).
		Run(filesys.MakeFsOnDisk(), filepath.Join(folder, "fleet", "clusters", "prod"))
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for _, r := range rendered.Resources() {
		fields, err := r.Map()
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, &unstructured.Unstructured{Object: fields})
	}
	text, err := os.ReadFile(filepath.Join(folder, "fleet", "bootstrap", "gitsource.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	source := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &source.Object); err != nil {
		t.Fatal(err)
	}
	for _, object := range append(objects, source) {
		gvk := object.GroupVersionKind()
		plural := map[string]string{"GitSource": "gitsources", "ClusterRelease": "clusterreleases", "NodeOS": "nodeoses"}[gvk.Kind]
		// The namespace of the installation doesn't exist; only admission is
		// tested.
		object.SetNamespace("default")
		_, err := client.Resource(schema.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: plural}).
			Namespace("default").Create(t.Context(), object,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
		if err != nil {
			t.Errorf("%s %s: %v", gvk.Kind, object.GetName(), err)
		}
	}
}

func TestTheReleaseBuildsAndLoads(t *testing.T) {
	release, err := build.Build(filepath.Join(folder, "release"), "")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := release.Tree()
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := payload.LoadUnverified(tree, payload.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, m := range loaded.Manifests {
		kinds = append(kinds, m.ID.Kind)
	}
	if got, want := strings.Join(kinds, " "), "Namespace Service Deployment PodDisruptionBudget"; got != want {
		t.Errorf("the release holds %s, want %s in this order", got, want)
	}
}
