// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"go.yaml.in/yaml/v3"

	"github.com/lockstep-dev/lockstep/config/trust"
)

// desk is a person's machine with a registry beside it.
type desk struct {
	t    *testing.T
	dir  string
	host string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	return &desk{t: t, dir: t.TempDir(), host: strings.TrimPrefix(srv.URL, "http://")}
}

func (d *desk) path(name string) string { return filepath.Join(d.dir, name) }

// run runs a command line and returns its exit code and output.
func (d *desk) run(args ...string) (int, string) {
	d.t.Helper()
	var out, errs bytes.Buffer
	code := run(d.t.Context(), args, &out, &errs)
	d.t.Logf("lockstep %s: %d\n%s%s", strings.Join(args, " "), code, out.String(), errs.String())
	return code, out.String() + errs.String()
}

// must runs a command line that has to succeed and returns the last line of
// its output.
func (d *desk) must(args ...string) string {
	d.t.Helper()
	code, out := d.run(args...)
	if code != 0 {
		d.t.Fatalf("lockstep %q: exit code %d", args, code)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// source writes the source of a release.
func (d *desk) source(files map[string]string) string {
	d.t.Helper()
	dir := d.t.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			d.t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			d.t.Fatal(err)
		}
	}
	return dir
}

func platform() map[string]string {
	return map[string]string{
		"release.yaml": `product: platform
version: 1.4.2
channel: stable
previous: [1.4.1]
components:
- {name: web, runLevel: 30}
- {name: base, runLevel: 10}
`,
		"base/ns.yaml":           "apiVersion: v1\nkind: Namespace\nmetadata: {name: web}\n",
		"web/kustomization.yaml": "namespace: web\nresources: [cm.yaml]\n",
		"web/cm.yaml":            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: b}\n",
	}
}

func TestFromTrustToAVerifiedRelease(t *testing.T) {
	d := newDesk(t)
	d.must("trust", "init", "--profile", "solo", "--dir", d.path("trust"), "--cluster", "prod")
	root, key := d.path("trust/root.json"), d.path("trust/release.key")

	ref := d.must("release", "build", d.source(platform()), d.host+"/acme/release:1.4.2")
	if code, out := d.run("release", "verify", ref, "--trust-policy", root); code != exitInvalid || !strings.Contains(out, "Unsigned") || !strings.Contains(out, "lockstep release sign "+ref) {
		t.Error("unsigned content isn't refused with the way to sign it")
	}
	d.must("release", "sign", ref, "--key", key)
	if _, out := d.run("release", "verify", ref, "--trust-policy", root, "--cluster", "prod", "--version", "1.4.2"); !strings.Contains(out, "signed by release") {
		t.Error("the signer isn't named")
	}
	if code, _ := d.run("release", "verify", ref, "--trust-policy", root, "--version", "1.4.3"); code != exitInvalid {
		t.Error("another version than the signed one was verified")
	}

	_, out := d.run("release", "inspect", d.host+"/acme/release:1.4.2", "--trust-policy", root)
	for _, want := range []string{"platform 1.4.2  (verified under root@1)", ref, "run level 10", "run level 30", "Namespace", "web/settings", "updates from 1.4.1"} {
		if !strings.Contains(out, want) {
			t.Errorf("inspect doesn't say %q", want)
		}
	}
	if _, out := d.run("release", "inspect", ref); !strings.Contains(out, "not verified") || strings.Contains(out, "run level") {
		t.Error("content was opened without being verified")
	}
}

func TestOSImagesAndLayouts(t *testing.T) {
	d := newDesk(t)
	d.must("trust", "init", "--dir", d.path("trust"), "--cluster", "prod")
	root, key := d.path("trust/root.json"), d.path("trust/release.key")
	image := filepath.Join(d.source(map[string]string{"os.img": "kernel"}), "os.img")
	for name, destination := range map[string]string{"registry": d.host + "/acme/os", "layout": "oci:" + d.path("layout")} {
		t.Run(name, func(t *testing.T) {
			ref := d.must("os", "build", "--product", "platform-os", "--version", "2.1.0", image, destination)
			d.must("os", "sign", ref, "--key", key)
			d.must("os", "verify", ref, "--trust-policy", root)
			if code, _ := d.run("release", "verify", ref, "--trust-policy", root); code != exitInvalid {
				t.Error("an OS image was verified as a release")
			}
		})
	}
	ref := d.must("release", "build", d.source(platform()), "oci:"+d.path("layout")+":1.4.2")
	d.must("release", "sign", ref, "--key", key)
	d.must("release", "sign", ref, "--key", key)
	d.must("release", "verify", ref, "--trust-policy", root)
	d.must("release", "inspect", "oci:"+d.path("layout")+":1.4.2", "--trust-policy", root, "-o", "json")
}

func TestAPayloadPathIsSignedInItsPlace(t *testing.T) {
	d := newDesk(t)
	d.must("trust", "init", "--profile", "team", "--dir", d.path("trust"), "--cluster", "prod")
	root := d.path("trust/root.json")
	d.must("release", "build", d.source(platform()), "path:"+d.path("repo/site"))
	d.must("release", "sign", d.path("repo/site"), "--key", d.path("trust/release.key"))
	if code, out := d.run("release", "verify", d.path("repo/site"), "--trust-policy", root); code != exitInvalid || !strings.Contains(out, "ThresholdNotMet") {
		t.Error("one of two signatures was enough")
	}
	d.must("release", "sign", d.path("repo/site"), "--key", d.path("trust/ci.key"))
	d.must("release", "verify", d.path("repo/site"), "--trust-policy", root)
	d.must("release", "inspect", d.path("repo/site"))
	if err := os.WriteFile(d.path("repo/site/release-manifests/0000_99_x_0000-y.yaml"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := d.run("release", "verify", d.path("repo/site"), "--trust-policy", root); code != exitInvalid || !strings.Contains(out, "WrongDigest") {
		t.Error("a file more was covered by the signature")
	}
}

func TestTrustInitCreatesAWorkingPolicy(t *testing.T) {
	for profile, threshold := range map[string]int{"solo": 1, "team": 2, "regulated": 3} {
		t.Run(profile, func(t *testing.T) {
			d := newDesk(t)
			d.must("trust", "init", "--profile", profile, "--dir", d.path("trust"), "--cluster", "prod-*",
				"--product", "platform=r.example.com/platform/**", "--source", "ssh://git@git.example.com/platform/")
			accepted, err := loadTrust(d.path("trust/root.json"), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			doc := accepted.Document
			if doc.Roles[trust.RoleRoot].Threshold != threshold || len(doc.RoleKeys(trust.RoleGit)) == 0 || !doc.Governs("prod-1") {
				t.Errorf("document is %+v", doc)
			}
			keys, err := filepath.Glob(d.path("trust/*.key"))
			if err != nil || len(keys) != len(doc.Keys) {
				t.Fatalf("keys are %v, %v", keys, err)
			}
			for _, k := range keys {
				if info, err := os.Stat(k); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s has mode %v, %v", k, info.Mode(), err)
				}
			}
			if code, _ := d.run("trust", "init", "--dir", d.path("trust"), "--cluster", "prod"); code != exitInvalid {
				t.Error("a policy was overwritten")
			}
			var object struct {
				Kind string `yaml:"kind"`
				Spec struct {
					Envelope string `yaml:"envelope"`
				} `yaml:"spec"`
			}
			b, err := os.ReadFile(d.path("trust/trustpolicy.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal(b, &object); err != nil || object.Kind != "TrustPolicy" || !json.Valid([]byte(object.Spec.Envelope)) {
				t.Errorf("object is %+v, %v", object, err)
			}
			if _, err := trust.Pin([]byte(object.Spec.Envelope), doc.Digest(), time.Now()); err != nil {
				t.Errorf("the object's envelope: %v", err)
			}
		})
	}
}

func TestSeveralUsersSignATrustPolicyInTurn(t *testing.T) {
	d := newDesk(t)
	t.Setenv(passwordVariable, "correct horse")
	d.must("trust", "init", "--profile", "team", "--dir", d.path("trust"), "--cluster", "prod")
	old, err := os.ReadFile(d.path("trust/trust.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(d.path("trust/admin-1.key")); err != nil || strings.Contains(string(b), "BEGIN PRIVATE KEY") {
		t.Errorf("the key isn't encrypted: %v", err)
	}
	next := strings.Replace(string(old), "version: 1\n", "version: 2\n", 1)
	if err := os.WriteFile(d.path("next.yaml"), []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	d.must("trust", "sign", d.path("next.yaml"), "--key", d.path("trust/admin-1.key"), "--output", d.path("next.json"))
	check := []string{"trust", "check", d.path("next.json"), "--current", d.path("trust/root.json")}
	if code, out := d.run(check...); code != exitInvalid || !strings.Contains(out, "PolicyChangeRefused") {
		t.Error("one of two root keys was enough")
	}
	d.must("trust", "sign", d.path("next.json"), "--key", d.path("trust/admin-3.key"))
	if got := d.must(check...); !strings.Contains(got, "takes effect immediately") {
		t.Error(got)
	}
	d.must("trust", "status", d.path("next.json"))
	t.Setenv(passwordVariable, "wrong")
	if code, _ := d.run("trust", "sign", d.path("next.json"), "--key", d.path("trust/admin-2.key")); code == 0 {
		t.Error("a wrong password opened a key")
	}
}

func TestABuildThatNoClusterWouldLoadIsRefused(t *testing.T) {
	d := newDesk(t)
	forbidden := platform()
	forbidden["base/evil.yaml"] = "apiVersion: lockstep.dev/v1alpha1\nkind: TrustPolicy\nmetadata: {name: root, namespace: lockstep-system}\n"
	twice := platform()
	twice["base/again.yaml"] = twice["base/ns.yaml"]
	annotated := func(name, key, value string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: web, labels: {from: " + name + "}, annotations: {" + key + ": '" + value + "'}}\n"
	}
	unhealthy := platform()
	unhealthy["base/rule.yaml"] = strings.Replace(annotated("rule", "lockstep.dev/health", "self.data["), "settings", "rule", 1)
	hidden := platform()
	hidden["base/edge.yaml"] = strings.Replace(annotated("edge", "lockstep.dev/profile", "edge"), "annotations: {", "annotations: {lockstep.dev/wait: forever, ", 1)
	together := platform()
	together["base/a.yaml"], together["base/b.yaml"] = annotated("a", "lockstep.dev/capability", "A"), annotated("b", "lockstep.dev/capability", "B")
	for name, files := range map[string]map[string]string{
		"a payload that changes trust": forbidden, "an object twice": twice, "a rule that doesn't compile": unhealthy,
		"a bad annotation of a variant": hidden, "two of one identity that both may be selected": together,
	} {
		if code, _ := d.run("release", "build", d.source(files)); code != exitInvalid {
			t.Errorf("%s was built", name)
		}
	}
	variants := platform()
	delete(variants, "web/cm.yaml")
	variants["web/kustomization.yaml"] = "resources: [kind.yaml]\n"
	variants["web/kind.yaml"] = strings.Replace(annotated("any", "lockstep.dev/health", "has(self.data)"), "settings", "any", 1)
	variants["base/a.yaml"], variants["base/b.yaml"] = annotated("a", "lockstep.dev/profile", "edge"), annotated("b", "lockstep.dev/profile", "core")
	if code, out := d.run("release", "build", d.source(variants)); code != 0 || !strings.Contains(out, "4 manifests") {
		t.Error("variants of one object can't be built")
	}
}

func TestBuildReportsWhatItFoundInTheSource(t *testing.T) {
	d := newDesk(t)
	files := platform()
	files["release.yaml"] = strings.Replace(files["release.yaml"], "runLevel: 10", "runLevel: 10, namespace: base", 1)
	files["base/role.yaml"] = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: reader, namespace: web}\n"
	files["base/config.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nbogus: 1\n"
	files["base/values.yaml"], files["base/README.md"] = "replicas: 3\n", "text"
	code, out := d.run("release", "build", d.source(files))
	for _, want := range []string{
		"warning: base/role.yaml:3 (document 1): rbac.authorization.k8s.io ClusterRole web/reader: namespace web is removed",
		"warning: base/config.yaml:1 (document 1): ConfigMap base/a: ConfigMap of v1 has no field .bogus",
		"ignored 2 files without manifests: base/README.md, base/values.yaml",
		"platform 1.4.2: 4 manifests in 5 files",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	files["base/broken.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, annotations: {lockstep.dev/wait: forever}}\n"
	if code, out := d.run("release", "build", d.source(files)); code != exitInvalid || !strings.Contains(out, "base/broken.yaml:1 (document 1): ConfigMap base/b: annotation lockstep.dev/wait") {
		t.Error("the position of an annotation isn't in the source")
	}
	files["base/broken.yaml"] = `apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: web}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec: {containers: [{name: c, image: x, envFrom: [{configMapRef: {name: settings}}]}]}
`
	if code, out := d.run("release", "build", d.source(files)); code != exitInvalid || !strings.Contains(out, "Deployment web/d (base/broken.yaml:1)") || !strings.Contains(out, "ConfigMap web/settings (web/cm.yaml:1 (document 1))") {
		t.Error("an order that can't work was built, or its objects aren't named")
	}
}
