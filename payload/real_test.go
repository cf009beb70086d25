// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/test/openshift"
)

// realPayload returns the payload of 30 OpenShift operators in the directory
// LOCKSTEP_SHARED, by default next to the repository.
func realPayload(tb testing.TB) fs.FS {
	tb.Helper()
	tree, _, err := openshift.Payload("..")
	if errors.Is(err, fs.ErrNotExist) {
		tb.Skipf("real payload not found: %v; set LOCKSTEP_SHARED to its directory", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return tree
}

var highlyAvailable = LoadOptions{Selection: Selection{Profile: "self-managed-high-availability"}}

func TestARealPayloadLoadsAsInCVO(t *testing.T) {
	p, err := LoadUnverified(realPayload(t), highlyAvailable)
	if err != nil {
		t.Fatal(err)
	}
	skipped := map[string]int{}
	for _, s := range p.Skipped {
		skipped[s.Reason]++
	}
	if diff := cmp.Diff(map[string]int{SkipProfile: 51, SkipFeatureSet: 107, SkipTemplate: 4, SkipDuplicate: 1}, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if all := len(p.Manifests) + len(p.Skipped); all != 1022 {
		t.Errorf("%d documents, want 1022", all)
	}
	if filtered := len(p.Manifests) + skipped[SkipTemplate] + skipped[SkipDuplicate]; filtered != 864 {
		t.Errorf("%d documents after the filter, want 864", filtered)
	}
	kinds := map[string]int{}
	for _, m := range p.Manifests {
		kinds[m.GVK.Kind]++
	}
	if kinds["CustomResourceDefinition"] != 104 || kinds["RoleBinding"] != 81 || kinds["ClusterOperator"] != 29 {
		t.Errorf("kinds are %v", kinds)
	}
	for _, want := range []string{
		`0000_50_csi-snapshot-controller-operator_04_serviceaccount.yaml:14 (document 1): duplicate key "capability.openshift.io/name" in a mapping`,
		`0000_90_openshift-cluster-image-policy.yaml: invalid file name`,
		`0000_00_cluster-version-operator_30_deployment.yaml:1: Go template`,
		`0000_50_node-tuning-operator_40-rbac.yaml:116 (document 3): rbac.authorization.k8s.io ClusterRoleBinding cluster-node-tuning-operator: ClusterRoleBinding of rbac.authorization.k8s.io/v1 has no field .userNames: removed`,
		`0000_90_cluster-update-keys_configmap_2.yaml:2 (document 1): ConfigMap openshift-config-managed/release-verification is already defined at`,
	} {
		if !strings.Contains(strings.Join(p.Warnings, "\n"), want) {
			t.Errorf("no warning contains %q", want)
		}
	}
	if n := strings.Count(strings.Join(p.Warnings, "\n"), "has no field"); n != 2 {
		t.Errorf("%d manifests have unknown fields, want 2:\n%s", n, strings.Join(p.Warnings, "\n"))
	}
}

func TestARealPayloadWithoutAProfileIsRejected(t *testing.T) {
	_, err := LoadUnverified(realPayload(t), LoadOptions{})
	if e := refusal(t, err); !strings.Contains(e.Error(), "already") {
		t.Errorf("error is %v", e)
	}
}

// kubectl and CVO send the JSON of sigs.k8s.io/yaml.
func TestARealPayloadDecodesAsInKubernetes(t *testing.T) {
	tree := realPayload(t)
	names, _, err := manifestFiles(tree)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, name := range names {
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			t.Fatal(err)
		}
		docs, _, err := decodeFile(name, data, DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		if len(docs) != 1 {
			continue // The peer decodes a single document.
		}
		compared++
		got, err := appendCanonical(nil, docs[0].content)
		if err != nil {
			t.Fatal(err)
		}
		if want := peerJSON(t, bytes.TrimPrefix(data, bom)); !bytes.Equal(want, got) {
			t.Errorf("%s (-want +got):\n%s", name, cmp.Diff(string(want), string(got)))
		}
	}
	if compared < 500 {
		t.Errorf("%d files compared, want at least 500", compared)
	}
}

// peerJSON returns the peer's JSON of one document with sorted keys.
func peerJSON(t *testing.T, data []byte) []byte {
	t.Helper()
	converted, err := yaml.YAMLToJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(converted))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(out.Bytes())
}

func BenchmarkLoadOfARealPayload(b *testing.B) {
	tree := realPayload(b)
	names, _, err := manifestFiles(tree)
	if err != nil {
		b.Fatal(err)
	}
	size := int64(0)
	for _, name := range names {
		info, err := fs.Stat(tree, name)
		if err != nil {
			b.Fatal(err)
		}
		size += info.Size()
	}
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := LoadUnverified(tree, highlyAvailable); err != nil {
			b.Fatal(err)
		}
	}
}
