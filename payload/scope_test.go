// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const widgetCRD = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com}, spec: {group: example.com, scope: Cluster, names: {kind: Widget}}}\n"

func TestScopeErrorsNameObjectsThatCannotExist(t *testing.T) {
	p, err := loadTree(t, map[string]string{file: strings.Join([]string{
		widgetCRD,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n",
		"{apiVersion: v1, kind: Namespace, metadata: {name: b, namespace: web}}\n",
		"{apiVersion: example.com/v1, kind: Widget, metadata: {name: c, namespace: web}}\n",
		"{apiVersion: example.com/v1, kind: Widget, metadata: {name: right}}\n",
		"{apiVersion: example.com/v1, kind: Unknown, metadata: {name: right}}\n",
	}, "---\n")}, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, err := range p.ScopeErrors() {
		got = append(got, err.Error())
	}
	want := []string{
		"release-manifests/" + file + ":3 (document 2): ConfigMap a: ConfigMap is namespaced, but has no namespace; set metadata.namespace",
		"release-manifests/" + file + ":5 (document 3): Namespace web/b: Namespace is cluster-scoped, but has namespace web; remove metadata.namespace",
		"release-manifests/" + file + ":7 (document 4): example.com Widget web/c: Widget is cluster-scoped, but has namespace web; remove metadata.namespace",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func TestNamespacesOfClusterScopedObjectsAreRemovedInCVOPayloads(t *testing.T) {
	role := "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r, namespace: web, annotations: {include.release.openshift.io/ha: \"true\"}}}\n"
	p, err := loadTree(t, map[string]string{file: role}, LoadOptions{Selection: Selection{Profile: "ha"}})
	if err != nil {
		t.Fatal(err)
	}
	m := p.Manifests[0]
	if m.ID.Namespace != "" || strings.Contains(string(m.JSON), "web") || m.Hash != sha256.Sum256(m.JSON) || m.Object.GetNamespace() != "" {
		t.Errorf("the manifest is %s %s", m.ID, m.JSON)
	}
	if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], file+":1 (document 1): rbac.authorization.k8s.io ClusterRole web/r: namespace web is removed") {
		t.Errorf("warnings are %q", p.Warnings)
	}
}

func TestHiddenFilesAreIgnoredWithAWarning(t *testing.T) {
	p, err := loadTree(t, map[string]string{file: configMap("a", nil), ".0000_10_web_01.yaml": configMap("b", nil), ".DS_Store": "x"}, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"release-manifests/.0000_10_web_01.yaml: hidden file; ignored"}, p.Warnings); diff != "" || len(p.Manifests) != 1 {
		t.Errorf("%d manifests, warnings (-want +got):\n%s", len(p.Manifests), diff)
	}
}

func TestAllDuplicateKeysAreReported(t *testing.T) {
	_, err := loadTree(t, map[string]string{
		file:                  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: b}\ndata:\n  c: d\n  c: e\n",
		"0000_10_web_02.json": "{\"apiVersion\": \"v1\",\n\"kind\": \"X\",\n\"metadata\": {\"name\": \"a\",\n\"name\": \"b\"},\n\"kind\": \"Y\"}\n",
	}, LoadOptions{})
	if refusal(t, err).Reason() != ReasonInvalid {
		t.Errorf("error is %v", err)
	}
	const rest = " in a mapping, also on line %; remove one of them, since only the last value is used"
	want := []string{
		"release-manifests/" + file + `:7 (document 1): duplicate key "c"` + strings.Replace(rest, "%", "6", 1),
		"release-manifests/" + file + `:5 (document 1): duplicate key "data"` + strings.Replace(rest, "%", "4", 1),
		`release-manifests/0000_10_web_02.json:4 (document 1): duplicate key "name"` + strings.Replace(rest, "%", "3", 1),
		`release-manifests/0000_10_web_02.json:5 (document 1): duplicate key "kind"` + strings.Replace(rest, "%", "2", 1),
	}
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func TestLongListsOfProblemsAreCut(t *testing.T) {
	var p Problems
	for range maxProblems + 3 {
		p.Add(&LoadError{Kind: ReasonInvalid, Message: "x"})
	}
	lines := strings.Split(p.Err().Error(), "\n")
	if len(lines) != maxProblems+1 || lines[maxProblems] != "and 3 more problems" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
	var joined Problems
	joined.Add(p.Err())
	if len(joined.list) != maxProblems || joined.cut != 1 {
		t.Errorf("joined errors are %d and %d more", len(joined.list), joined.cut)
	}
}
