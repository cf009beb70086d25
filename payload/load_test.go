// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/payload/verify"
)

const file = "0000_10_web_00.yaml"

func TestLoadRejectsUnverifiedPayloads(t *testing.T) {
	_, err := Load(verify.Signed{}, testTree(nil), LoadOptions{})
	if refusal(t, err).Reason() != ReasonInvalid {
		t.Errorf("Load of a zero Signed: %v", err)
	}
}

func TestLoadReadsManifestsInPayloadOrder(t *testing.T) {
	p, err := loadTree(t, map[string]string{
		"0000_20_api_00.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: web}\n",
		"0000_10_web_01.yaml": "# first a comment\n--- # and a comment here\napiVersion: v1\nkind: Namespace\nmetadata: {name: web}\n---\n" +
			"apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: web}\ndata: {a: eA==}\nstringData: {b: \"y\"}\n",
		"README.md": "not a manifest",
	}, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		ID            string
		File          string
		Document      int
		Line          int
		RunLevel      int
		Component     string
		CanonicalForm string
	}
	var got []row
	for _, m := range p.Manifests {
		got = append(got, row{m.ID.String(), m.File, m.Document, m.Line, m.RunLevel, m.Component, string(m.JSON)})
	}
	want := []row{
		{"Namespace web", "release-manifests/0000_10_web_01.yaml", 1, 3, 10, "web", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"web"}}`},
		{
			"Secret web/s", "release-manifests/0000_10_web_01.yaml", 2, 7, 10, "web",
			`{"apiVersion":"v1","data":{"a":"eA==","b":"eQ=="},"kind":"Secret","metadata":{"name":"s","namespace":"web"}}`,
		},
		{"ConfigMap web/c", "release-manifests/0000_20_api_00.yaml", 1, 1, 20, "api", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","namespace":"web"}}`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("manifests (-want +got):\n%s", diff)
	}
	if p.Product != "platform" || p.Version != "1.4.2" || !strings.HasPrefix(p.VersionHash, "sha256:") {
		t.Errorf("product %q, version %q, hash %q", p.Product, p.Version, p.VersionHash)
	}
}

func TestLoadErrorsHaveFileDocumentAndLine(t *testing.T) {
	const ok = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n"
	for name, tc := range map[string]struct{ data, want string }{
		"no kind":                 {ok + "apiVersion: v1\nmetadata: {name: b}\n", `:5 (document 2): the document has no apiVersion or kind`},
		"no name":                 {ok + "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: b}\n", `:5 (document 2): ConfigMap has no metadata.name`},
		"a list":                  {ok + "- a\n", `:5 (document 2): the document is a list, must be a mapping`},
		"a duplicate key":         {ok + "apiVersion: v1\nkind: ConfigMap\nkind: Secret\nmetadata: {name: b}\n", `:7 (document 2): duplicate key "kind" in a mapping, also on line 6; remove one of them`},
		"a duplicate object":      {ok + ok[:len(ok)-4], `:5 (document 2): ConfigMap a is already defined at release-manifests/` + file + `:1 (document 1)`},
		"broken YAML":             {ok + "kind: [\n", `(document 2)`},
		"an unknown annotation":   {annotated("lockstep.dev/paused", "true"), `:1 (document 1): ConfigMap b: unknown annotation lockstep.dev/paused`},
		"an unknown value":        {annotated("lockstep.dev/wait", "forever"), `annotation lockstep.dev/wait: value "forever", must be complete, started or none`},
		"a value of another type": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, annotations: {lockstep.dev/delete: yes}}\n", `annotation lockstep.dev/delete is a boolean, must be a string; quote it`},
		"another annotation":      {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, annotations: {example.com/x: 1}}\n", `annotation example.com/x is a number`},
		"a bad pointer":           {annotated("lockstep.dev/ignore-fields", "spec.replicas"), `isn't a JSON pointer`},
		"delete and replace":      {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, annotations: {lockstep.dev/delete: \"true\", lockstep.dev/replace: \"true\"}}\n", `the delete and replace annotations are mutually exclusive`},
		"a merge key":             {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata: {<<: {a: b}}\n", `:4 (document 1): merge key`},
		"an infinite number":      {"apiVersion: v1\nkind: X\nmetadata: {name: b}\nspec: {a: .inf}\n", `:4 (document 1): number .inf can't be represented in JSON`},
		"a key that is a list":    {"apiVersion: v1\nkind: X\nmetadata: {name: b}\nspec: {[a]: b}\n", `:4 (document 1): key is a list`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadTree(t, map[string]string{file: tc.data}, LoadOptions{})
			e := refusal(t, err)
			if e.Reason() != ReasonInvalid || !strings.Contains(e.Error(), tc.want) || !strings.Contains(e.Error(), file) {
				t.Errorf("error is %s %q\nwant %q", e.Reason(), e, tc.want)
			}
		})
	}
}

// annotated returns a ConfigMap b with one annotation.
func annotated(key, value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b\n  annotations:\n    " + key + ": " + `"` + value + `"` + "\n"
}

func TestLoadRejectsInvalidFileNames(t *testing.T) {
	_, err := loadTree(t, map[string]string{"web.yaml": annotated("a", "b")}, LoadOptions{})
	if e := refusal(t, err); !strings.Contains(e.Error(), "0000_<run level>_<component>_<rest>.yaml") {
		t.Errorf("error is %q", e)
	}
}

func TestLoadRejectsANameOrVersionThatIsNotSigned(t *testing.T) {
	for name, want := range map[string]expected{
		"another product": {"other", "1.4.2"},
		"another version": {"platform", "1.4.3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(&want, testTree(nil), LoadOptions{})
			if got := refusal(t, err).Reason(); got != ReasonMismatch {
				t.Errorf("reason is %s, want %s", got, ReasonMismatch)
			}
		})
	}
}

func TestLoadRejectsInvalidMetadata(t *testing.T) {
	for name, data := range map[string]string{
		"no JSON":           `kind: x`,
		"another kind":      `{"kind":"x","version":"1.0.0"}`,
		"no version":        `{"kind":"cincinnati-metadata-v0"}`,
		"a short version":   `{"kind":"cincinnati-metadata-v0","version":"1.0"}`,
		"a bad predecessor": `{"kind":"cincinnati-metadata-v0","version":"1.0.0","previous":["x"]}`,
		"a bad name":        `{"kind":"cincinnati-metadata-v0","version":"1.0.0","name":"a\nb"}`,
		"two documents":     `{"kind":"cincinnati-metadata-v0","version":"1.0.0"}{}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := LoadUnverified(fstest.MapFS{"release-manifests/release-metadata": {Data: []byte(data)}}, LoadOptions{})
			if e := refusal(t, err); !strings.Contains(e.Error(), MetadataFile) {
				t.Errorf("error is %v", e)
			}
		})
	}
}

func TestLoadEnforcesItsLimits(t *testing.T) {
	deep := "apiVersion: v1\nkind: X\nmetadata: {name: a}\nspec: " + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "\n"
	bomb := "apiVersion: v1\nkind: X\nmetadata: {name: a}\nspec:\n  a: &a [x, x, x, x, x, x, x, x, x]\n" +
		"  b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n  c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\n  d: [*c, *c, *c, *c, *c, *c, *c]\n"
	self := "apiVersion: v1\nkind: X\nmetadata: {name: a}\nspec: &a {b: *a}\n"
	large := "apiVersion: v1\nkind: X\nmetadata: {name: a}\nspec: " + strings.Repeat("x", maxDocument) + "\n"
	escaped := "apiVersion: v1\nkind: X\nmetadata: {name: a}\nspec: '" + strings.Repeat(`"`, maxDocument-100) + "'\n"
	many := strings.Repeat("---\napiVersion: v1\nkind: X\nmetadata: {name: a}\n", 3)
	for name, tc := range map[string]struct {
		data   string
		limits Limits
	}{
		"depth":                   {data: deep},
		"depth in JSON":           {data: `{"apiVersion":"v1","kind":"X","metadata":{"name":"a"},"spec":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`},
		"aliases":                 {data: bomb},
		"an alias within itself":  {data: self},
		"a document":              {data: large},
		"a document when escaped": {data: escaped},
		"documents":               {data: many, limits: Limits{Bytes: 1 << 20, Manifests: 2, Document: 1 << 20, Depth: 9, Aliases: 9}},
		"bytes":                   {data: many, limits: Limits{Bytes: 10, Manifests: 20, Document: 1 << 20, Depth: 9, Aliases: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadTree(t, map[string]string{file: tc.data}, LoadOptions{Limits: tc.limits})
			if e := refusal(t, err); e.Reason() != ReasonLimit {
				t.Errorf("reason is %s (%v), want %s", e.Reason(), e, ReasonLimit)
			}
		})
	}
}

func TestTheVersionHashIsIndependentOfFormatting(t *testing.T) {
	const a = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: \"1\"}\n"
	const b = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n"
	hash := func(data string) string {
		t.Helper()
		p, err := loadTree(t, map[string]string{file: data}, LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.VersionHash
	}
	want := hash(a + "---\n" + b)
	for name, data := range map[string]string{
		"comments and directives": "# c\n%YAML 1.1\n--- # d\n" + a + "...\n%YAML 1.1\n---\n# e\n" + b,
		"a byte-order mark":       "\ufeff" + a + "---\n" + b,
		"empty documents":         "---\n" + a + "---\n---\n# nothing\n---\n" + b + "---\n",
		"order of keys and JSON":  `{"kind":"ConfigMap","apiVersion":"v1","data":{"k":"1"},"metadata":{"name":"a"}}` + "\n" + `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}`,
		"a list":                  "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: \"1\"}}\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}\n",
	} {
		if got := hash(data); got != want {
			t.Errorf("%s: hash %s, want %s", name, got, want)
		}
	}
	if hash(a) == want || hash(strings.Replace(a, `"1"`, `"2"`, 1)+"---\n"+b) == want {
		t.Error("other content has the same hash")
	}
}

func TestASeparatorInABlockScalarIsContent(t *testing.T) {
	p, err := loadTree(t, map[string]string{
		file: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: |\n    x\n    ---\n    y\n",
	}, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	data, _ := p.Manifests[0].Object.Object["data"].(map[string]any)
	if got := data["k"]; got != "x\n---\ny\n" {
		t.Errorf("the block scalar is %q", got)
	}
}

func TestUnpinnedImagesAreWarnings(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	refs := `{"kind":"ImageStream","metadata":{"name":"1.4.2"},"spec":{"tags":[{"name":"a","from":{"name":"r/a` + digest + `"}},{"name":"b","from":{"name":"r/b:v1"}},{"name":"c","from":{"name":"r/c@sha256:1"}}]}}`
	p, err := loadTree(t, map[string]string{"image-references": refs}, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`release-manifests/image-references: image b is "r/b:v1", must be pinned by digest: repository@sha256:<64 hex digits>`,
		`release-manifests/image-references: image c is "r/c@sha256:1", must be pinned by digest: repository@sha256:<64 hex digits>`,
	}
	if diff := cmp.Diff(want, p.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestIgnoredFieldsInJSONMayContainCommas(t *testing.T) {
	for value, want := range map[string][]string{
		"/spec/replicas, /data/a":               {"/spec/replicas", "/data/a"},
		`["/data/a, b", "/data/c"]`:             {"/data/a, b", "/data/c"},
		` [ "/metadata/annotations/x.io~1y" ] `: {"/metadata/annotations/x.io~1y"},
	} {
		m := Manifest{}
		if err := m.setIgnoreFields(value); err != nil {
			t.Errorf("%s: %v", value, err)
		}
		if diff := cmp.Diff(want, m.IgnoreFields); diff != "" {
			t.Errorf("%s (-want +got):\n%s", value, diff)
		}
	}
	for _, value := range []string{`["/a"`, `[1]`, `[]`, `["a"]`, `["/a"] x`, `[null]`} {
		if err := (&Manifest{}).setIgnoreFields(value); err == nil {
			t.Errorf("%s was accepted", value)
		}
	}
}

func TestImagesDeclareTheKubernetesVersion(t *testing.T) {
	tag := func(name, versions string) string {
		return `{"name":"` + name + `","annotations":{"io.openshift.build.versions":"` + versions + `"},"from":{"name":"r/` + name + `@sha256:1"}}`
	}
	for name, tc := range map[string]struct{ tags, want string }{
		"one image":              {tag("api", "") + "," + tag("kubelet", "machine-os=9.4.1, kubernetes=1.36.3"), "1.36.3"},
		"two equal versions":     {tag("api", "kubernetes=1.36.3") + "," + tag("kubelet", "kubernetes=1.36.3"), "1.36.3"},
		"two different versions": {tag("api", "kubernetes=1.36.3") + "," + tag("kubelet", "kubernetes=1.35.1"), ""},
		"none":                   {tag("api", "etcd=3.5.1"), ""},
		"an invalid version":     {tag("api", "kubernetes=newest"), ""},
	} {
		refs := `{"kind":"ImageStream","metadata":{"name":"1.4.2"},"spec":{"tags":[` + tc.tags + `]}}`
		p, err := loadTree(t, map[string]string{"image-references": refs}, LoadOptions{})
		if err != nil || p.Kubernetes != tc.want {
			t.Errorf("%s: Kubernetes %q (%v), want %q", name, p.Kubernetes, err, tc.want)
		}
	}
}

func TestImageReferencesMatchTheVersion(t *testing.T) {
	refs := `{"kind":"ImageStream","metadata":{"name":"1.4.2"},"spec":{"tags":[{"name":"api","from":{"name":"r/api@sha256:1"}}]}}`
	p, err := loadTree(t, map[string]string{"image-references": refs}, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"api": "r/api@sha256:1"}, p.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	_, err = loadTree(t, map[string]string{"image-references": strings.Replace(refs, "1.4.2", "1.4.3", 1)}, LoadOptions{})
	if refusal(t, err).Reason() != ReasonMismatch {
		t.Errorf("another version: %v", err)
	}
}
