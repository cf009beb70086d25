// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/crd"
)

// SharedWithKinds returns the shared control plane with the CRDs of the
// declared kinds installed and served.
func SharedWithKinds(tb testing.TB) *Cluster {
	tb.Helper()
	c := Shared(tb)
	if err := c.InstallKinds(tb.Context()); err != nil {
		tb.Fatalf("install the declared kinds: %v", err)
	}
	return c
}

// InstallKinds applies the CRDs of the declared kinds and waits until the API
// server serves them.
func (c *Cluster) InstallKinds(ctx context.Context) error {
	return fs.WalkDir(crd.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(crd.FS(), path)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		return c.Apply(ctx, data)
	})
}

// Apply applies the documents of a YAML stream in order by server-side apply
// as the administrator, and waits after each CRD until its kind is served.
func (c *Cluster) Apply(ctx context.Context, documents []byte) error {
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("make a discovery client: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	reader := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(documents)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("split the documents: %w", err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return fmt.Errorf("decode a document: %w", err)
		}
		if len(object.Object) == 0 {
			continue // a comment only
		}
		if err := c.applyOne(ctx, client, mapper, object); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

func (c *Cluster) applyOne(ctx context.Context, client dynamic.Interface, mapper meta.ResettableRESTMapper, object *unstructured.Unstructured) error {
	gvk := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return fmt.Errorf("find its resource: %w", err)
	}
	var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	options := metav1.ApplyOptions{FieldManager: "controlplane", Force: true}
	if _, err := resource.Apply(ctx, object.GetName(), object, options); err != nil {
		return err
	}
	if gvk.Kind != "CustomResourceDefinition" {
		return nil
	}
	err = poll(ctx, func(ctx context.Context) (bool, error) {
		got, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return established(got), nil
	})
	if err != nil {
		return fmt.Errorf("wait until it is established: %w", err)
	}
	mapper.Reset()
	return nil
}

// established reports whether the API server serves the kind that the CRD d
// defines.
func established(d *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(d.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["type"] == "Established" {
			return condition["status"] == "True"
		}
	}
	return false
}
