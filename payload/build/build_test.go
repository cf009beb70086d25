// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

const head = "product: platform\nversion: 1.4.2\ncomponents: [{name: web, runLevel: 30}]\n"

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: web}\n"

// buildFiles builds a source with the given files.
func buildFiles(t *testing.T, files map[string]string) (*Release, error) {
	t.Helper()
	m := fstest.MapFS{}
	for name, content := range files {
		m[name] = &fstest.MapFile{Data: []byte(content)}
	}
	in, err := tree.Copy(m, ".", tree.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return buildTree(in, "")
}

func TestFileNamesFollowRunLevelsAndComponents(t *testing.T) {
	r, err := buildFiles(t, map[string]string{
		"release.yaml": `product: platform
version: 1.4.2
components:
- {name: web, runLevel: 30}
- {name: base, runLevel: 5, path: folders/base}
`,
		"web/kustomization.yaml":   "resources: [../shared, deploy.yaml]\nnamePrefix: x-\n",
		"web/deploy.yaml":          "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: Web, namespace: web}\n",
		"shared/kustomization.yml": "resources: [ns.yaml]\n",
		"shared/ns.yaml":           "apiVersion: v1\nkind: Namespace\nmetadata: {name: web}\n",
		"folders/base/b.yaml":      configMap,
		"folders/base/a b.yml":     configMap,
		"folders/base/README.md":   "text",
	})
	if err != nil {
		t.Fatal(err)
	}
	// kustomize leaves the names of namespaces as they are.
	want := []string{
		"release-manifests/0000_05_base_0000-a-b.yaml",
		"release-manifests/0000_05_base_0001-b.yaml",
		"release-manifests/0000_30_web_0000-namespace-web.yaml",
		"release-manifests/0000_30_web_0001-deployment-x-web.yaml",
		"release-manifests/release-metadata",
	}
	if diff := cmp.Diff(want, r.Files()); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestBuildIsReproducible(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"release.yaml": head, "web/a.yaml": configMap, "web/b.yaml": configMap} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one, err := Build(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "web/a.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	two, err := Build(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if trust.DigestOf(one.archive) != trust.DigestOf(two.archive) {
		t.Error("builds of the same source have different digests")
	}
	other, err := Build(dir, "1.4.3")
	if err != nil || other.Identity().Version != "1.4.3" || trust.DigestOf(other.archive) == trust.DigestOf(one.archive) {
		t.Errorf("another version: %+v, %v", other.Identity(), err)
	}
}

func TestInvalidSourcesAreRejected(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no release.yaml":                   {map[string]string{"web/a.yaml": configMap}, "release.yaml"},
		"an unknown field":                  {map[string]string{"release.yaml": head + "extra: 1\n", "web/a.yaml": configMap}, "field extra"},
		"an invalid version":                {map[string]string{"release.yaml": strings.Replace(head, "1.4.2", "v1", 1), "web/a.yaml": configMap}, "semantic version"},
		"an invalid product":                {map[string]string{"release.yaml": strings.Replace(head, "platform", "a/b", 1), "web/a.yaml": configMap}, "product"},
		"no components":                     {map[string]string{"release.yaml": "product: a\nversion: 1.0.0\n"}, "components"},
		"a duplicate component":             {map[string]string{"release.yaml": strings.Replace(head, "[{", "[{name: web}, {", 1), "web/a.yaml": configMap}, "duplicate"},
		"a path outside the source":         {map[string]string{"release.yaml": strings.Replace(head, "30}", "30, path: ../x}", 1)}, "in the source"},
		"a component with a _":              {map[string]string{"release.yaml": strings.Replace(head, "web", "w_b", 1)}, "lower-case"},
		"a run level over 99":               {map[string]string{"release.yaml": strings.Replace(head, "30", "100", 1)}, "run level"},
		"an empty component":                {map[string]string{"release.yaml": head, "web/x.txt": ""}, "no manifest"},
		"a missing component":               {map[string]string{"release.yaml": head}, "web"},
		"a document without a kind":         {map[string]string{"release.yaml": head, "web/a.yaml": "metadata: {name: a}\n"}, "web/a.yaml:1 (document 1): the document has no apiVersion or kind"},
		"a subdirectory of plain manifests": {map[string]string{"release.yaml": head, "web/a.yaml": configMap, "web/sub/b.yaml": configMap}, "without a kustomization"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := buildFiles(t, tc.files); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestKustomizeFetchesNothingAndRunsNothing(t *testing.T) {
	for name, kustomization := range map[string]string{
		"a remote base":               "resources: ['https://evil.example.com/x.yaml']",
		"a Git base":                  "resources: ['git@github.com:evil/x.git']",
		"a shortened Git base":        "resources: ['github.com/evil/x']",
		"a base with a query":         "resources: ['github.com/evil/x?ref=main']",
		"a base outside":              "resources: ['../../outside']",
		"an absolute base":            "resources: ['/etc']",
		"an old remote base":          "bases: ['https://evil.example.com/x']",
		"a remote component":          "components: ['https://evil.example.com/x']",
		"a remote CRD":                "crds: ['https://evil.example.com/x']",
		"a remote patch":              "resources: [a.yaml]\npatches: [{path: 'https://evil.example.com/x'}]",
		"an old remote patch":         "resources: [a.yaml]\npatchesStrategicMerge: ['https://evil.example.com/x']",
		"a remote replacement":        "resources: [a.yaml]\nreplacements: [{path: 'https://evil.example.com/x'}]",
		"a remote schema":             "resources: [a.yaml]\nopenapi: {path: 'https://evil.example.com/x'}",
		"a remote generator":          "generators: ['https://evil.example.com/x']",
		"a remote file of a map":      "configMapGenerator: [{name: x, files: ['k=https://evil.example.com/x']}]",
		"remote variables of a map":   "secretGenerator: [{name: x, envs: ['https://evil.example.com/x']}]",
		"an inline generator":         "generators: [\"apiVersion: builtin\\nkind: ConfigMapGenerator\\nmetadata: {name: x}\\nfiles: ['https://evil.example.com/x']\\n\"]",
		"a generator file with a URL": "generators: [gen.yaml]",
		"a program":                   "generators: [exec.yaml]",
		"a Helm chart":                "helmCharts: [{name: x, repo: 'https://evil.example.com'}]",
	} {
		t.Run(name, func(t *testing.T) {
			r, err := buildFiles(t, map[string]string{
				"release.yaml":           head,
				"web/kustomization.yaml": kustomization + "\n",
				"web/a.yaml":             configMap,
				"web/gen.yaml":           "apiVersion: builtin\nkind: ConfigMapGenerator\nmetadata: {name: x}\nfiles: ['https://evil.example.com/x']\n",
				"web/exec.yaml":          "apiVersion: v1\nkind: X\nmetadata:\n  name: x\n  annotations: {config.kubernetes.io/function: 'exec: {path: /bin/true}'}\n",
			})
			if err == nil {
				t.Fatalf("the build succeeded: %q", r.Files())
			}
			if strings.Contains(err.Error(), "dial") || strings.Contains(err.Error(), "lookup") {
				t.Errorf("the build used the network: %v", err)
			}
		})
	}
	if _, err := buildFiles(t, map[string]string{
		"release.yaml": head, "web/kustomization.yaml": "resources: [github-runner.yaml, git/x.yaml]\n",
		"web/github-runner.yaml": configMap, "web/git/x.yaml": strings.Replace(configMap, "name: a", "name: b", 1),
	}); err != nil {
		t.Errorf("local files with such names: %v", err)
	}
}

func TestKeysCanBeWrittenAndRead(t *testing.T) {
	password := func() ([]byte, error) { return []byte("pw"), nil }
	for name, made := range map[string]func() (*Key, error){"cosign": GenerateKey, "OpenSSH": GenerateSSHKey} {
		for _, secret := range [][]byte{nil, []byte("pw")} {
			k, err := made()
			if err != nil {
				t.Fatal(err)
			}
			b, err := k.PrivatePEM(secret)
			if name == "OpenSSH" {
				b, err = k.PrivateSSH("me", secret)
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := ParseKey(b, password)
			if err != nil || got.Fingerprint() != k.Fingerprint() || got.IsSSH() != k.IsSSH() {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := ParseKey(b, nil); (err == nil) != (secret == nil) {
				t.Errorf("%s without a password: %v", name, err)
			}
			if _, err := ParseKey(append(slices.Clone(b), b...), password); err == nil {
				t.Errorf("%s: a file with two keys was accepted", name)
			}
		}
	}
	for _, bad := range []string{"", "x", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		if _, err := ParseKey([]byte(bad), password); err == nil || strings.Contains(err.Error(), "AAAA") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestDestinationsAreSplitIntoRepositoryAndTag(t *testing.T) {
	for in, want := range map[string][2]string{
		"r.example.com/a":          {"r.example.com/a", ""},
		"r.example.com:5000/a":     {"r.example.com:5000/a", ""},
		"r.example.com:5000/a:t":   {"r.example.com:5000/a", "t"},
		"oci:dir":                  {"oci:dir", ""},
		"oci:dir:t":                {"oci:dir", "t"},
		"oci:/tmp/dir:t":           {"oci:/tmp/dir", "t"},
		"oci:/tmp/dir":             {"oci:/tmp/dir", ""},
		"localhost:5000/x/y:1.2.3": {"localhost:5000/x/y", "1.2.3"},
	} {
		if repo, tag := split(in); repo != want[0] || tag != want[1] {
			t.Errorf("split(%q) is %q, %q", in, repo, tag)
		}
	}
}
