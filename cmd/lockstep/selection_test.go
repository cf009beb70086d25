// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/lockstep-dev/lockstep/config/crd"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/test/openshift"
)

const highlyAvailable = "self-managed-high-availability"

// realPayload is OpenShift's, in a folder, and the version it has.
func realPayload(t *testing.T) (tree fstest.MapFS, dir, version string) {
	t.Helper()
	tree, _, err := openshift.Payload("../..")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the real payload isn't here: %v; set LOCKSTEP_SHARED to its directory", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, f := range tree {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var meta struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(tree["release-manifests/release-metadata"].Data, &meta); err != nil {
		t.Fatal(err)
	}
	return tree, dir, meta.Version
}

func TestARealPayloadIsInspectedByASelection(t *testing.T) {
	_, dir, version := realPayload(t)
	d := newDesk(t)
	code, out := d.run("release", "inspect", dir, "--profile", highlyAvailable)
	for _, want := range []string{version, "run level 50", "ClusterOperator", "excluded      FeatureSet  107 documents", "has no field .userNames", "capabilities", "NodeTuning"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("code %d, inspect lacks %q", code, want)
		}
	}
	count := func(args ...string) (objects, excluded int) {
		t.Helper()
		stdout, errs, code := runCommand(t, append([]string{"release", "inspect", dir, "-o", "json"}, args...)...)
		var in inspection
		if err := json.Unmarshal([]byte(stdout), &in); err != nil || code != 0 {
			t.Fatalf("%v: code %d, %v, %s", args, code, err, errs)
		}
		for _, l := range in.RunLevels {
			for _, c := range l.Components {
				objects += len(c.Objects)
			}
		}
		return objects, len(in.Excluded)
	}
	all, left := count("--profile", highlyAvailable)
	if all+left != 1022 {
		t.Errorf("%d objects and %d left out, want 1022 documents", all, left)
	}
	some, _ := count("--profile", highlyAvailable, "--capabilities", "v4.11")
	more, _ := count("--profile", highlyAvailable, "--capabilities", "v4.11", "--additional-capabilities", "NodeTuning")
	other, _ := count("--profile", highlyAvailable, "--feature-set", "TechPreviewNoUpgrade")
	if some >= more || more >= all || other == all {
		t.Errorf("%d objects; %d of a small set, %d with one capability more, %d of another feature set", all, some, more, other)
	}
}

func TestARealPayloadInAnOCILayoutIsInspected(t *testing.T) {
	tree, _, version := realPayload(t)
	d := newDesk(t)
	d.must("trust", "init", "--profile", "solo", "--dir", d.path("trust"), "--cluster", "prod")
	ref := "oci:" + d.path("layout") + "@" + layoutOf(t, d.path("layout"), tree, version)
	d.must("release", "sign", ref, "--key", d.path("trust/release.key"))
	code, out := d.run("release", "inspect", ref, "--trust-policy", d.path("trust/root.json"), "--profile", highlyAvailable)
	if code != 0 || !strings.Contains(out, version+"  (verified under root@1)") || !strings.Contains(out, "run level 50") {
		t.Errorf("code %d", code)
	}
}

// layoutOf writes an image of the files as OpenShift's release images have
// them, and returns its digest.
func layoutOf(t *testing.T, dir string, tree fstest.MapFS, version string) string {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(tree[name].Data)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(tree[name].Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		t.Fatal(err)
	}
	img, ok := mutate.Annotations(img, map[string]string{verify.AnnotationProduct: "platform", verify.AnnotationVersion: version}).(v1.Image)
	if !ok {
		t.Fatal("the annotated image isn't one")
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

func TestASelectionIsCheckedBeforeAnythingIsOpened(t *testing.T) {
	for _, command := range [][]string{{"inspect", "/nowhere"}, {"graph", "/nowhere"}, {"diff", "/nowhere", "/nowhere"}} {
		_, errs, code := runCommand(t, append(append([]string{"release"}, command...), "--capabilities", "v4.99")...)
		if code != exitInvalid || !strings.Contains(errs, `"v4.99": must be one of All, None, v4.11`) {
			t.Errorf("%v: code %d, %s", command, code, errs)
		}
	}
}

// The CRD and the loads accept the same baselines.
func TestTheCRDAcceptsTheBaselinesOfALoad(t *testing.T) {
	crds, err := crd.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range crds {
		if d.Spec.Names.Kind != v1alpha1.KindClusterRelease {
			continue
		}
		spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		var names []string
		for _, value := range spec.Properties["capabilities"].Properties["baseline"].Enum {
			names = append(names, strings.Trim(string(value.Raw), `"`))
		}
		known := payload.Baselines()
		slices.Sort(names)
		slices.Sort(known)
		if diff := cmp.Diff(known, names); diff != "" {
			t.Errorf("baselines (-loads +definition):\n%s", diff)
		}
		return
	}
	t.Error("ClusterRelease has no definition")
}

func TestFeatureGatesAreEvaluatedOnceOneIsNamed(t *testing.T) {
	dir := payloadFolder(t, "1.4.2", map[string]string{
		"0000_10_web_00.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: gated, annotations: {release.openshift.io/feature-gate: A}}}\n",
	})
	for want, args := range map[string][]string{"1 manifests": nil, "1 manifests in": {"--feature-gates", "A,B"}, "0 manifests": {"--feature-gates", "B"}} {
		out, errs, code := runCommand(t, append([]string{"release", "graph", dir}, args...)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%v: code %d, %s%s", args, code, out, errs)
		}
	}
}
