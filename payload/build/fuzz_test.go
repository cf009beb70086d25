// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

// FuzzComponent builds a component from a file and a kustomization, which is
// absent if it is empty. Nothing may panic, and what is built must load.
func FuzzComponent(f *testing.F) {
	for _, seed := range []string{
		"", "resources: [a.yaml]\n", "resources: [.]\n", "resources: [..]\n", "resources: [a.yaml]\nimages: [{name: x, newTag: 1.10}]\n", "resources: [a.yaml]\nnamePrefix: x-\nnamespace: web\n",
		"resources: [a.yaml]\nResources: [b]\n", "resources: &r [a.yaml]\nbases: *r\n", "resources: {a: b}\n", "configMapGenerator: [{name: x, literals: [a=b]}]\n", "- a\n",
		"resources: [a.yaml]\npatches: [{patch: '- {op: add, path: /x, value: y}', target: {kind: ConfigMap}}]\n", "resources: [a.yaml]\nbuildMetadata: [originAnnotations]\n", "vars: [{}]\nresources: [a.yaml]\n",
	} {
		f.Add(seed, cm("one"))
		f.Add(seed, "apiVersion: v1\nkind: ConfigMapList\nitems: [{metadata: {name: one, namespace: web}}]\n---\n~\n")
		f.Add(seed, deployment+"        env: [{name: A}, {name: A}]\n")
	}
	f.Fuzz(func(t *testing.T, kustomization, content string) {
		if len(kustomization)+len(content) > 1<<12 || strings.Contains(kustomization, "://") {
			return
		}
		m := fstest.MapFS{SourceFile: {Data: []byte(head)}, "web/a.yaml": {Data: []byte(content)}}
		if kustomization != "" {
			m["web/kustomization.yaml"] = &fstest.MapFile{Data: []byte(kustomization)}
		}
		in, err := tree.Copy(m, ".", tree.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := buildTree(in, "")
		if err != nil {
			return
		}
		files, err := r.Tree()
		if err != nil {
			t.Fatal(err)
		}
		p, err := payload.LoadUnverified(files, payload.LoadOptions{})
		if err != nil {
			return // Rules of clusters, such as for annotations, aren't part of the build.
		}
		if found := p.ScopeErrors(); len(found) > 0 {
			t.Fatalf("what was built can't be applied: %v", found)
		}
	})
}
