// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

// sourceSeeds are files of sources, good and bad.
var sourceSeeds = append([]string{
	"apiVersion: v1\nkind: ConfigMapList\nitems:\n- metadata: {name: a}\n  data: {a: 1}\n- null\n- [x]\n",
	"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: SecretList, items: [{metadata: {name: s}, data: {k: '%'}}]}]}\n",
	"apiVersion: v1\nkind: List\nitems: &i\n- apiVersion: v1\n  kind: Pod\n  metadata: &m {name: a, labels: {a: b}}\n- *i\n",
	"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: 1}\nspec: {replicas: 1e9, template: {spec: {containers: [{ports: [{containerPort: x}]}]}}}\n",
	"apiVersion: apps/v1\nkind: deployment\nmetadata: {name: a}\n", "kind: List\nitems: 1\n", "apiVersion: v1\nkind: Config Map\nmetadata: x\n",
	"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 1, targetPort: {a: b}}], clusterIPs: x}\n", "# only a comment\n", "---\n~\n", "\r0",
}, decodeSeeds...)

// FuzzSource checks that no source makes its decoder or its checks panic, and that
// every problem has a position in the file.
func FuzzSource(f *testing.F) {
	for _, seed := range sourceSeeds {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, rendered bool) {
		if len(data) > 1<<14 {
			return
		}
		lines := 1
		for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} { // those of YAML
			lines += strings.Count(string(data), end)
		}
		placed := func(err error) {
			var e *LoadError
			if !errors.As(err, &e) || e.File != "f" || e.Line < 0 || e.Line > lines {
				t.Fatalf("error %v has no position within %d lines", err, lines)
			}
		}
		src, err := DecodeSource("f", data, rendered)
		if err != nil {
			placed(err)
		}
		for i := range src.Objects {
			o := &src.Objects[i]
			for _, err := range CheckSource(o) {
				placed(err)
			}
			_ = CheckScope(o.ID(), Scopes{}.Of(o.ID().GroupKind()))
			var scopes Scopes
			scopes.Add(o.Content)
		}
		if err := CheckKeys("f", data); err != nil {
			placed(err)
		}
	})
}

func TestSimilarKindsDifferInOneLetterAtMost(t *testing.T) {
	for pair, want := range map[[2]string]bool{
		{"configmap", "ConfigMap"}: true, {"Config-Map", "ConfigMap"}: true, {"Config map", "ConfigMap"}: true, {"Deploymnet", "Deployment"}: false,
		{"Deployments", "Deployment"}: true, {"Deploymen", "Deployment"}: true, {"Deplayment", "Deployment"}: true, {"Dplymnt", "Deployment"}: false,
		{"Role", "RoleBinding"}: false, {"", "A"}: true, {"Job", "Pod"}: false, {"Pod", "Pod"}: true,
	} {
		if got := similar(pair[0], pair[1]); got != want {
			t.Errorf("similar(%q, %q) is %t", pair[0], pair[1], got)
		}
	}
}

// A check that rejects what clusters run would be worse than none.
func TestTheChecksAcceptARealPayload(t *testing.T) {
	tree := realPayload(t)
	names, _, err := manifestFiles(tree)
	if err != nil {
		t.Fatal(err)
	}
	objects := 0
	for _, name := range names {
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			t.Fatal(err)
		}
		src, err := DecodeSource(name, data, true)
		if err != nil {
			t.Log(err) // Templates, and files with duplicate keys.
		}
		for i := range src.Objects {
			objects++
			for _, err := range CheckSource(&src.Objects[i]) {
				t.Error(err)
			}
		}
	}
	if objects < 1000 {
		t.Errorf("%d objects were checked", objects)
	}
}
