// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/payload"
)

// Object is one generated object and its resource.
type Object struct {
	Content  map[string]any
	Resource string // the plural
	// Foundation objects must exist before others can.
	Foundation bool
}

// share is a part of the mix.
type share struct {
	kind  string
	count int // of 1,000
}

// mixShares are the parts of an application of 1,000 objects: 565 kB of YAML.
func mixShares() []share {
	return []share{
		{"CustomResourceDefinition", 20},
		{"Namespace", 100},
		{"ConfigMap", 240},
		{"Deployment", 200},
		{"ServiceAccount", 120},
		{"Role", 80},
		{"RoleBinding", 80},
		{"Service", 160},
	}
}

// MixResources are the resources of the mix except CRDs, for which client-go
// has no typed client.
func MixResources() []schema.GroupVersionResource {
	core := schema.GroupVersion{Version: "v1"}
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	return []schema.GroupVersionResource{
		core.WithResource("namespaces"), core.WithResource("configmaps"), core.WithResource("serviceaccounts"), core.WithResource("services"),
		{Group: "apps", Version: "v1", Resource: "deployments"},
		rbac.WithResource("roles"), rbac.WithResource("rolebindings"),
	}
}

// Mix returns n objects of the mix. Their names begin with prefix: mixes with
// different prefixes have no object in common.
func Mix(prefix string, n int) []Object {
	g := generator{prefix: prefix, namespaces: max(n/10, 1)}
	var out []Object
	for _, s := range mixShares() {
		for i := range s.count * n / 1000 {
			out = append(out, g.make(s.kind, i))
		}
	}
	return out
}

// generator makes objects of built-in kinds.
type generator struct {
	prefix     string
	namespaces int
}

func (g generator) namespace(i int) string {
	return fmt.Sprintf("%s-ns-%d", g.prefix, i%g.namespaces)
}

func (g generator) name(i int) string { return fmt.Sprintf("%s-%d", g.prefix, i) }

func (g generator) labels(i int) map[string]any {
	return map[string]any{
		"app.kubernetes.io/name": g.name(i), "app.kubernetes.io/part-of": g.prefix,
		"app.kubernetes.io/managed-by": "bench",
	}
}

// head returns the start of an object, without a namespace for cluster scope.
func (g generator) head(apiVersion, kind string, i int, clusterScope bool) map[string]any {
	metadata := map[string]any{"name": g.name(i), "labels": g.labels(i)}
	if !clusterScope {
		metadata["namespace"] = g.namespace(i)
	}
	return map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
}

// make returns the i-th object of a kind.
func (g generator) make(kind string, i int) Object {
	switch kind {
	case "CustomResourceDefinition":
		return g.crd(fmt.Sprintf("Thing%d", i), g.prefix+".example.com")
	case "Namespace":
		o := g.head("v1", kind, i, true)
		o["metadata"].(map[string]any)["name"] = g.namespace(i)
		return Object{Content: o, Resource: "namespaces", Foundation: true}
	case "ConfigMap":
		o := g.head("v1", kind, i, false)
		o["data"] = map[string]any{
			"config.yaml": fmt.Sprintf("listen: 0.0.0.0:%d\nlevel: info\nfeatures:\n- alpha\n- beta\n", 8000+i%1000),
			"owner":       "team-" + fmt.Sprint(i%17),
		}
		return Object{Content: o, Resource: "configmaps"}
	case "ServiceAccount":
		return Object{Content: g.head("v1", kind, i, false), Resource: "serviceaccounts"}
	case "Service":
		return Object{Content: g.service(i), Resource: "services"}
	case "Deployment":
		return Object{Content: g.deployment(i), Resource: "deployments"}
	default:
		return g.permission(kind, i)
	}
}

func (g generator) service(i int) map[string]any {
	o := g.head("v1", "Service", i, false)
	o["spec"] = map[string]any{
		"selector": map[string]any{"app.kubernetes.io/name": g.name(i)},
		"ports":    []any{map[string]any{"name": "http", "port": int64(80), "targetPort": "http", "protocol": "TCP"}},
	}
	return o
}

func (g generator) deployment(i int) map[string]any {
	o := g.head("apps/v1", "Deployment", i, false)
	o["spec"] = map[string]any{
		"replicas": int64(2),
		"selector": map[string]any{"matchLabels": map[string]any{"app.kubernetes.io/name": g.name(i)}},
		"template": map[string]any{
			"metadata": map[string]any{"labels": g.labels(i)},
			"spec": map[string]any{
				"serviceAccountName": "default",
				"containers":         []any{container(i)},
			},
		},
	}
	return o
}

func container(i int) map[string]any {
	return map[string]any{
		"name":  "main",
		"image": "registry.example.com/app@sha256:" + strings.Repeat(fmt.Sprint(i%10), 64),
		"args":  []any{"serve", "--config=/etc/app/config.yaml"},
		"ports": []any{map[string]any{"name": "http", "containerPort": int64(8080), "protocol": "TCP"}},
		"env":   []any{map[string]any{"name": "LEVEL", "value": "info"}, map[string]any{"name": "INSTANCE", "value": fmt.Sprint(i)}},
		"resources": map[string]any{
			"requests": map[string]any{"cpu": "50m", "memory": "64Mi"},
			"limits":   map[string]any{"memory": "128Mi"},
		},
		"readinessProbe": map[string]any{"httpGet": map[string]any{"path": "/healthz", "port": "http"}, "periodSeconds": int64(5)},
	}
}

// permission returns roles and their bindings of either scope.
func (g generator) permission(kind string, i int) Object {
	const group = "rbac.authorization.k8s.io"
	o := g.head(group+"/v1", kind, i, strings.HasPrefix(kind, "Cluster"))
	if !strings.HasSuffix(kind, "Binding") {
		o["rules"] = []any{
			map[string]any{"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": []any{"get", "list", "watch"}},
			map[string]any{"apiGroups": []any{"apps"}, "resources": []any{"deployments"}, "verbs": []any{"get"}},
		}
		return Object{Content: o, Resource: strings.ToLower(kind) + "s"}
	}
	o["roleRef"] = map[string]any{"apiGroup": group, "kind": strings.TrimSuffix(kind, "Binding"), "name": g.name(i)}
	o["subjects"] = []any{map[string]any{"kind": "ServiceAccount", "name": g.name(i), "namespace": g.namespace(i)}}
	return Object{Content: o, Resource: strings.ToLower(kind) + "s"}
}

// crd returns a CRD of a namespaced kind with a schema.
func (g generator) crd(kind, group string) Object {
	plural := strings.ToLower(kind) + "s"
	text := map[string]any{"type": "string"}
	schema := map[string]any{"type": "object", "properties": map[string]any{
		"spec": map[string]any{"type": "object", "properties": map[string]any{
			"title": text, "size": map[string]any{"type": "integer"},
			"items": map[string]any{"type": "array", "items": text},
		}},
		"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
	}}
	o := g.head("apiextensions.k8s.io/v1", "CustomResourceDefinition", 0, true)
	o["metadata"].(map[string]any)["name"] = plural + "." + group
	o["spec"] = map[string]any{
		"group": group, "scope": "Namespaced",
		"names": map[string]any{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind)},
		"versions": []any{map[string]any{
			"name": "v1", "served": true, "storage": true,
			"schema":       map[string]any{"openAPIV3Schema": schema},
			"subresources": map[string]any{"status": map[string]any{}},
		}},
	}
	return Object{Content: o, Resource: "customresourcedefinitions", Foundation: true}
}

// Manifests returns the mix as the engine's input.
func Manifests(objects []Object) ([]payload.Manifest, error) {
	out := make([]payload.Manifest, 0, len(objects))
	for _, o := range objects {
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: o.Content})
		if err != nil {
			return nil, fmt.Errorf("generated object: %w", err)
		}
		out = append(out, m)
	}
	return out, nil
}

// Documents returns the mix as a YAML stream for other tools.
func Documents(objects []Object) ([]byte, error) {
	var b bytes.Buffer
	for _, o := range objects {
		raw, err := yaml.Marshal(o.Content)
		if err != nil {
			return nil, fmt.Errorf("generated object: %w", err)
		}
		b.WriteString("---\n")
		b.Write(raw)
	}
	return b.Bytes(), nil
}
