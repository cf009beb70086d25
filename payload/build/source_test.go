// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/payload"
)

// cm returns a ConfigMap in namespace web.
func cm(name string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: web}\n"
}

// component returns a source with one component, web.
func component(files map[string]string) map[string]string {
	out := map[string]string{SourceFile: head}
	for name, content := range files {
		out["web/"+name] = content
	}
	return out
}

// objectsOf loads the release and returns its objects.
func objectsOf(t *testing.T, r *Release) []string {
	t.Helper()
	files, err := r.Tree()
	if err != nil {
		t.Fatal(err)
	}
	p, err := payload.Check(files)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i := range p.Manifests {
		out = append(out, p.Manifests[i].ID.String())
	}
	return out
}

func TestContentThatKubectlMendsIsMendedInPlainDirectories(t *testing.T) {
	two := []string{"ConfigMap web/one", "ConfigMap web/two"}
	for name, content := range map[string]string{
		"empty documents first":      "---\n---\n" + cm("one") + "---\n" + cm("two"),
		"a comment before the first": "# header\n---\n---\n" + cm("one") + "---\n" + cm("two"),
		"a document of comments":     cm("one") + "--- \n# Source: x.yaml\n#\n---\n" + cm("two"),
		"a blank document":           cm("one") + "---\n\n---\n" + cm("two") + "---\n",
		"null and ~":                 cm("one") + "---\nnull\n---\n~\n---\n" + cm("two"),
		"a byte-order mark":          "\ufeff" + cm("one") + "---\n" + cm("two"),
		"line ends of Windows":       strings.ReplaceAll(cm("one")+"---\n"+cm("two"), "\n", "\r\n"),
		"a list":                     "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: one, namespace: web}}\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: two, namespace: web}}\n",
		"a list of ConfigMaps":       "apiVersion: v1\nkind: ConfigMapList\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: one, namespace: web}}\n- metadata: {name: two, namespace: web}\n",
		"nested and empty lists":     "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: SecretList, items: null}\n- apiVersion: v1\n  kind: ConfigMapList\n  items: [{metadata: {name: one, namespace: web}}, {metadata: {name: two, namespace: web}}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			r, err := buildFiles(t, component(map[string]string{"a.yaml": content}))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(two, objectsOf(t, r)); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			r, err = buildFiles(t, component(map[string]string{"a.yaml": content, "kustomization.yaml": "resources: [a.yaml]\n"}))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(two, objectsOf(t, r)); diff != "" {
				t.Errorf("objects of a kustomization (-want +got):\n%s", diff)
			}
		})
	}
	clean := cm("one") + "# kept\n---\n" + cm("two")
	r, err := buildFiles(t, component(map[string]string{"a.yaml": clean}))
	if err != nil || string(r.files[0].data) != clean {
		t.Errorf("a file that needs no change was changed: %v", err)
	}
}

func TestListsOfCustomKindsAreExpandedAndNamedObjectsAreNot(t *testing.T) {
	r, err := buildFiles(t, component(map[string]string{"a.yaml": `apiVersion: example.com/v1
kind: WidgetList
items:
- metadata: {name: one, namespace: web}
- {apiVersion: example.com/v2, kind: Gadget, metadata: {name: two, namespace: web}}
---
apiVersion: example.com/v1
kind: AllowList
metadata: {name: three, namespace: web}
items: [a, b]
`}))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"example.com Widget web/one", "example.com Gadget web/two", "example.com AllowList web/three"}
	if diff := cmp.Diff(want, objectsOf(t, r)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// An empty component would delete all its objects from clusters.
func TestAComponentWithoutManifestsIsRejected(t *testing.T) {
	for name, content := range map[string]string{
		"comments": "# everything was commented out\n", "nothing": "", "an empty document": "---\n~\n", "an empty list": "apiVersion: v1\nkind: List\nitems: []\n",
		"an empty list of ConfigMaps": "apiVersion: v1\nkind: ConfigMapList\nitems: []\n", "values of a chart": "replicas: 3\n",
	} {
		for how, files := range map[string]map[string]string{
			"plain":     {"a.yaml": content},
			"kustomize": {"a.yaml": content, "kustomization.yaml": "resources: [a.yaml]\n"},
		} {
			if _, err := buildFiles(t, component(files)); err == nil {
				t.Errorf("%s (%s) was built", name, how)
			} else if how == "plain" && !strings.Contains(err.Error(), "web contains no manifest; remove the component from release.yaml") {
				t.Errorf("%s: error is %q", name, err)
			}
		}
	}
}

func TestOtherFilesAreIgnoredAndListed(t *testing.T) {
	r, err := buildFiles(t, component(map[string]string{
		"a.yaml": cm("one"), ".hidden.yaml": cm("two"), "README.md": "text", "values.yaml": "replicas: 3\n", "package.json": `{"scripts": {}}`, ".cache/x.yaml": cm("three"),
	}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"web/.cache", "web/.hidden.yaml", "web/README.md", "web/package.json", "web/values.yaml"}, r.Ignored()); diff != "" {
		t.Errorf("ignored (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"ConfigMap web/one"}, objectsOf(t, r)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestFileNamesWithAnyLegalCharacterWorkInKustomizations(t *testing.T) {
	r, err := buildFiles(t, component(map[string]string{
		"kustomization.yaml":              "resources: [sub/ha-1.21+, a+b.yaml, 'c d,e=f~g(h)#i.yaml', ümläut.yaml]\nconfigMapGenerator: [{name: gen, namespace: web, files: ['x=x+y.txt', 'k=z;1.txt']}]\n",
		"sub/ha-1.21+/kustomization.yaml": "resources: [a.yaml]\n",
		"sub/ha-1.21+/a.yaml":             cm("one"),
		"a+b.yaml":                        cm("two"),
		"c d,e=f~g(h)#i.yaml":             cm("three"),
		"ümläut.yaml":                     cm("four"),
		"x+y.txt":                         "text",
		"z;1.txt":                         "text",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got := objectsOf(t, r); len(got) != 5 {
		t.Errorf("objects are %q, want 5", got)
	}
	if len(r.Warnings()) > 0 {
		t.Errorf("warnings are %q", r.Warnings())
	}
	_, err = buildFiles(t, component(map[string]string{"kustomization.yaml": "resources: [a@b.yaml]\n", "a@b.yaml": cm("one")}))
	if want := `web/kustomization.yaml:1 (document 1): resources: kustomize would treat "a@b.yaml" as the address of a repository; rename the file or directory`; err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func TestKustomizeLeavesNoTraceOfItsOrigins(t *testing.T) {
	r, err := buildFiles(t, component(map[string]string{"kustomization.yaml": "resources: [a.yaml]\nlabels: [{pairs: {x: z}}]\n", "a.yaml": cm("one")}))
	if err != nil {
		t.Fatal(err)
	}
	want := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  labels:\n    x: z\n  name: one\n  namespace: web\n"
	if diff := cmp.Diff(want, string(r.files[0].data)); diff != "" {
		t.Errorf("rendered (-want +got):\n%s", diff)
	}
	kept, err := buildFiles(t, component(map[string]string{"kustomization.yaml": "resources: [a.yaml]\nbuildMetadata: [originAnnotations]\n", "a.yaml": cm("one")}))
	if err != nil || !strings.Contains(string(kept.files[0].data), "config.kubernetes.io/origin") {
		t.Errorf("the origin that the kustomization asks for is missing: %v", err)
	}
}
