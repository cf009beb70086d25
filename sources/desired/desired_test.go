// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/sources"
)

const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"

const release = `apiVersion: lockstep.dev/v1alpha1
kind: ClusterRelease
metadata:
  name: platform
spec:
  desired:
    version: 1.4.2
    image: registry.example.com/platform/release` + digest + `
`

const nodeOS = `apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata:
  name: workers
spec:
  all: true
  os:
    version: 2.1.0
    image: registry.example.com/platform/os` + digest + `
`

const source = `apiVersion: lockstep.dev/v1alpha1
kind: GitSource
metadata:
  name: fleet
spec:
  cluster: prod
  url: ssh://git@git.example.com/platform/fleet.git
  ref: {branch: main}
  path: clusters/prod
  verify: {mode: head}
`

func decoder(tb testing.TB) *Decoder {
	tb.Helper()
	d, err := NewDecoder()
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func files(kv ...string) fs.FS {
	out := fstest.MapFS{}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i]] = &fstest.MapFile{Data: []byte(kv[i+1])}
	}
	return out
}

func TestPlainDocumentsAreDecodedInOrder(t *testing.T) {
	rev := sources.Revision{Ref: "main", Hash: strings.Repeat("1", 40)}
	state, err := decoder(t).Decode(t.Context(), Request{
		Revision: rev, Path: "clusters/prod",
		FS: files("clusters/prod/a.yaml", release+"---\n# nothing\n---\n"+nodeOS, "clusters/prod/deep/s.yml", source, "clusters/prod/.hidden.yaml", "x", "clusters/prod/README.md", "x", "other/bad.yaml", "{{"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range state.Objects {
		got = append(got, o.Kind+"/"+o.Name+" "+place(o))
		if !strings.HasPrefix(o.Hash, "sha256:") || o.Manifest.GetNamespace() != v1alpha1.Namespace {
			t.Errorf("%s has hash %q and namespace %q", o.Name, o.Hash, o.Manifest.GetNamespace())
		}
	}
	if diff := cmp.Diff([]string{
		"GitSource/fleet clusters/prod/deep/s.yml:2",
		"NodeOS/workers clusters/prod/a.yaml:13", "ClusterRelease/platform clusters/prod/a.yaml:2",
	}, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if state.Revision != rev || len(state.ClusterReleases) != 1 || len(state.NodeOSes) != 1 || len(state.GitSources) != 1 {
		t.Errorf("state %+v", state)
	}
	n := state.NodeOSes[0]
	if n.Spec.Sequence != "upgrade" || n.Spec.Gates.Soak.Duration != 2*time.Minute || n.Namespace != v1alpha1.Namespace {
		t.Errorf("defaults aren't set: %+v", n.Spec)
	}
	if _, has := state.Objects[1].Manifest.Object["spec"].(map[string]any)["sequence"]; has {
		t.Error("the manifest to apply contains a default, an undeclared field")
	}
	if h, ok := state.Hash("NodeOS", "workers"); !ok || h != state.Objects[1].Hash {
		t.Errorf("Hash = %q, %v", h, ok)
	}
}

func TestHashDependsOnContentNotFormat(t *testing.T) {
	hash := func(doc string) string {
		t.Helper()
		state, err := decoder(t).Decode(t.Context(), Request{FS: files("a.yaml", doc)})
		if err != nil {
			t.Fatal(err)
		}
		return state.Objects[0].Hash
	}
	base := hash(nodeOS)
	for what, doc := range map[string]string{
		"an explicit default":     nodeOS + "  sequence: upgrade\n",
		"another duration format": nodeOS + "  bootDeadline: 600s\n",
		"a label":                 strings.Replace(nodeOS, "  name: workers", "  name: workers\n  labels: {a: b}", 1),
	} {
		if got := hash(doc); got != base {
			t.Errorf("%s changed the hash", what)
		}
	}
	if hash(nodeOS+"  suspend: true\n") == base {
		t.Error("another spec has the same hash")
	}
}

func TestKustomizationIsRenderedOnlyFromTheSource(t *testing.T) {
	fsys := files(
		"base/kustomization.yaml", "resources: [release.yaml]\n",
		"base/release.yaml", release,
		"clusters/prod/kustomization.yaml", "resources: [../../base, os.yaml]\npatches:\n- path: patch.yaml\n",
		"clusters/prod/os.yaml", nodeOS,
		"clusters/prod/patch.yaml", "apiVersion: lockstep.dev/v1alpha1\nkind: ClusterRelease\nmetadata: {name: platform}\nspec: {timeout: 90m}\n",
	)
	state, err := decoder(t).Decode(t.Context(), Request{FS: fsys, Path: "clusters/prod"})
	if err != nil {
		t.Fatal(err)
	}
	if got := state.ClusterReleases[0].Spec.Timeout.Duration; got != 90*time.Minute {
		t.Errorf("timeout %s, want the patch's", got)
	}
	if o := state.Objects[1]; place(o) != "base/release.yaml:2" {
		t.Errorf("the release is declared at %s", place(o))
	}
	if a := state.Objects[1].Manifest.GetAnnotations(); len(a) != 0 {
		t.Errorf("rendering left annotations %v", a)
	}
}

// reject decodes and returns reason and text of the error.
func reject(t *testing.T, d *Decoder, req Request) (string, string) {
	t.Helper()
	_, err := d.Decode(t.Context(), req)
	if err == nil {
		return "", "accepted"
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("err %T %v, want *Error", err, err)
	}
	return e.Reason(), e.Error()
}

func TestInvalidDocumentsAreRejected(t *testing.T) {
	d := decoder(t)
	for name, tc := range map[string]struct{ doc, want string }{
		"an unknown field":             {strings.Replace(release, "version:", "verson:", 1), "a.yaml:7: ClusterRelease/platform: unknown field spec.desired.verson; did you mean version?"},
		"an unknown field in a list":   {nodeOS + "  windows:\n  - cron: 0 22 * * 6\n    duration: 6h\n    timezone: UTC\n", "a.yaml:13: NodeOS/workers: unknown field spec.windows[0].timezone; did you mean timeZone?"},
		"a field beside spec":          {release + "specs: {}\n", "a.yaml:9: ClusterRelease/platform: unknown field specs; did you mean spec?"},
		"a status":                     {release + "status: {}\n", "status is set by the reconciler"},
		"a key twice":                  {release + "    version: 1.4.3\n", `a.yaml:9: duplicate key "version"`},
		"two documents for one object": {release + "---\n" + release, "a.yaml:11: ClusterRelease/platform: is declared twice, first in a.yaml:2"},
		"a mistyped kind":              {strings.Replace(release, "kind: ClusterRelease", "kind: ClusterRelase", 1), "did you mean ClusterRelease?"},
		"another version":              {strings.Replace(release, "v1alpha1", "v1beta9", 1), "want lockstep.dev/v1alpha1"},
		"a Host":                       {"apiVersion: lockstep.dev/v1alpha1\nkind: Host\nmetadata: {name: a}\nspec: {}\n", "can't be declared in Git"},
		"another kind":                 {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "add it to the payload of a release"},
		"another namespace":            {strings.Replace(release, "  name: platform", "  name: platform\n  namespace: web", 1), "a.yaml:5: ClusterRelease/platform: namespace"},
		"an owner":                     {strings.Replace(release, "  name: platform", "  name: platform\n  ownerReferences: []", 1), "metadata.ownerReferences can't be declared"},
		"a run-time annotation":        {strings.Replace(source, "  name: fleet", "  name: fleet\n  annotations: {lockstep.dev/accept-rewind: abc}", 1), "can't be declared"},
		"a label that isn't a string":  {strings.Replace(release, "  name: platform", "  name: platform\n  labels: {a: 1}", 1), "quote it"},
		"a value that is invalid":      {strings.Replace(release, digest, ":1.4.2", 1), "a.yaml:8: ClusterRelease/platform: spec.desired.image"},
		"a violated validation rule":   {strings.Replace(nodeOS, "  all: true\n", "", 1), "exactly one of nodeSelector and all: true"},
		"a missing field":              {"apiVersion: lockstep.dev/v1alpha1\nkind: NodeOS\nmetadata: {name: a}\nspec: {all: true}\n", "spec.os: Required value"},
		"no spec":                      {"apiVersion: lockstep.dev/v1alpha1\nkind: NodeOS\nmetadata: {name: a}\n", "has no spec"},
		"an invalid name":              {strings.Replace(release, "name: platform", "name: Platform_1", 1), "is invalid; use at most 253"},
		"a merge key":                  {"a: &a {b: c}\nd: {<<: *a}\n", "merge keys"},
		"an explicit tag":              {"a: !!binary aGk=\n", "explicit tag"},
		"a word that may be a boolean": {"a: yes\n", "is ambiguous in YAML"},
		"an octal number":              {"a: 0755\n", "is ambiguous in YAML"},
		"a list as document":           {"- a\n", "document is a list"},
		"invalid YAML":                 {"a: {\n", "a.yaml: line"},
		"a policy by another name":     {"apiVersion: lockstep.dev/v1alpha1\nkind: TrustPolicy\nmetadata: {name: mine}\nspec: {envelope: x}\n", "the trust policy is named root"},
	} {
		reason, got := reject(t, d, Request{FS: files("a.yaml", tc.doc)})
		if reason != ReasonInvalid || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %s %q, want %q", name, reason, got, tc.want)
		}
	}
}

func TestAllProblemsAreReported(t *testing.T) {
	doc := strings.Replace(release, "version:", "verson:", 1) + "---\n" + strings.Replace(nodeOS, "version:", "verson:", 1)
	_, got := reject(t, decoder(t), Request{FS: files("a.yaml", doc)})
	if strings.Count(got, "unknown field") != 2 {
		t.Errorf("%q, want both problems", got)
	}
}

func TestEmptyAndMissingPathsAreErrors(t *testing.T) {
	d := decoder(t)
	for name, tc := range map[string]struct {
		fs         fs.FS
		path, want string
		message    string
	}{
		"a missing path": {files("clusters/prod/a.yaml", release), "clusters/prd", ReasonPathNotFound, `did you mean "clusters/prod"`},
		"an empty one":   {files("clusters/prod/README.md", "x"), "clusters/prod", ReasonEmpty, "contains no documents"},
		"only comments":  {files("a.yaml", "# a\n---\n# b\n"), "", ReasonEmpty, ""},
		"an empty base":  {files("kustomization.yaml", "resources: []\n"), "", ReasonEmpty, ""},
		"a path outside": {files("a.yaml", release), "../x", ReasonInvalid, "inside"},
	} {
		if reason, got := reject(t, d, Request{FS: tc.fs, Path: tc.path}); reason != tc.want || !strings.Contains(got, tc.message) {
			t.Errorf("%s: %s %q, want %s", name, reason, got, tc.want)
		}
	}
}

func TestKustomizeFetchesAndRunsNothing(t *testing.T) {
	d := decoder(t)
	for name, k := range map[string]string{
		"a remote base":        "resources: ['https://example.invalid/x//base?ref=v1']\n",
		"a remote base by ssh": "resources: ['git@example.invalid:x/y']\n",
		"a short remote base":  "resources: [github.com/x/y]\n",
		"a remote component":   "components: ['https://example.invalid/x']\n",
		"a remote patch":       "resources: [a.yaml]\npatches: [{path: 'https://example.invalid/p.yaml'}]\n",
		"a patch by case":      "resources: [a.yaml]\npatches: [{Path: 'https://example.invalid/p.yaml'}]\n",
		"a remote old patch":   "resources: [a.yaml]\npatchesStrategicMerge: ['https://example.invalid/p.yaml']\n",
		"a generator":          "generators: [g.yaml]\n",
		"a generator by case":  "Generators: [g.yaml]\n",
		"a transformer":        "resources: [a.yaml]\ntransformers: [g.yaml]\n",
		"a chart":              "helmCharts: [{name: x, repo: 'https://example.invalid'}]\n",
		"a remote schema":      "resources: [a.yaml]\nopenapi: {path: 'https://example.invalid/x'}\n",
		"a remote config map":  "configMapGenerator: [{name: a, files: ['https://example.invalid/x']}]\n",
		"a relative path out":  "resources: [../../../etc/passwd]\n",
		"an absolute path":     "resources: [/a.yaml]\n",
	} {
		reason, got := reject(t, d, Request{FS: files("c/kustomization.yaml", k, "c/a.yaml", release, "c/g.yaml", release), Path: "c"})
		if reason != ReasonInvalid || !strings.Contains(got, "c/kustomization.yaml:") || strings.Contains(got, "kustomize:") {
			t.Errorf("%s: %s %q, want it rejected before kustomize runs", name, reason, got)
		}
	}
}

func TestT2ASourceCantChangeHowItIsRead(t *testing.T) {
	d := decoder(t)
	state, err := d.Decode(t.Context(), Request{FS: files("a.yaml", source)})
	if err != nil {
		t.Fatal(err)
	}
	reader := &Reader{Name: "fleet", Spec: state.GitSources[0].Spec, Prefixes: []string{"ssh://git@git.example.com/platform/"}}
	other := strings.Replace(source, "name: fleet", "name: site", 1)
	for name, tc := range map[string]struct{ doc, want string }{
		"equal to the live one":          {source, ""},
		"without verification":           {strings.Replace(source, "  verify: {mode: head}\n", "", 1), ReasonSelfReference},
		"another path":                   {strings.Replace(source, "clusters/prod", "clusters/evil", 1), ReasonSelfReference},
		"a further one with the prefix":  {other, ""},
		"a further one elsewhere":        {strings.Replace(other, "git.example.com", "evil.example.com", 1), ReasonSelfReference},
		"a further one by a longer name": {strings.Replace(other, "/platform/", "/platform-evil/", 1), ReasonSelfReference},
		"a further one with ..":          {strings.Replace(other, "/platform/", "/platform/../evil/", 1), ReasonSelfReference},
		"status into another repository": {other + "  writeBack: {url: 'ssh://git@evil.example.com/x'}\n", ReasonSelfReference},
	} {
		if reason, got := reject(t, d, Request{FS: files("a.yaml", tc.doc), Reader: reader}); reason != tc.want {
			t.Errorf("%s: %s %q, want %q", name, reason, got, tc.want)
		}
	}
}

func TestLimitsOfYAML(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for _, c := range "bcdefgh" {
		bomb += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 9) + "*" + string(c-1) + "]\n"
	}
	d := decoder(t)
	for name, doc := range map[string]string{
		"aliases": bomb,
		"depth":   "a: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\n",
		"bytes":   "a: " + strings.Repeat("x", maxFile) + "\n",
		"number":  strings.Repeat("a: b\n---\n", maxDocuments+1),
	} {
		if reason, got := reject(t, d, Request{FS: files("a.yaml", doc)}); reason != ReasonLimitExceeded {
			t.Errorf("%s: %s %.200q, want LimitExceeded", name, reason, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	d := decoder(f)
	for _, s := range []string{release, nodeOS, source, "a: &a [*a]", "? {a: b}\n: c", "a: !!float 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		state, err := d.Decode(t.Context(), Request{FS: files("a.yaml", doc)})
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("err %T, want *Error", err)
		}
		if err == nil && len(state.Objects) == 0 {
			t.Fatal("an empty state was accepted")
		}
		if err != nil && strings.ContainsAny(e.Error(), "\x1b\x00\r") {
			t.Fatalf("%q contains control characters", e.Error())
		}
	})
}
