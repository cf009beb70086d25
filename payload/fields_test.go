// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const binding = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: tuned, annotations: {include.release.openshift.io/ha: "true"}}
roleRef: {kind: ClusterRole, name: tuned, apiGroup: rbac.authorization.k8s.io}
subjects: [{kind: User, name: a, userNme: b}]
userNames: [a]
`

func TestUnknownFieldsAreRemovedInCVOPayloads(t *testing.T) {
	p, err := loadTree(t, map[string]string{file: configMap("first", map[string]string{"include.release.openshift.io/ha": "true"}) + "---\n" + binding},
		LoadOptions{Selection: Selection{Profile: "ha"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"release-manifests/" + file + ":3 (document 2): rbac.authorization.k8s.io ClusterRoleBinding tuned: " +
		"ClusterRoleBinding of rbac.authorization.k8s.io/v1 has no field .subjects[0].userNme, .userNames: removed, as CVO does"}
	if diff := cmp.Diff(want, p.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	m := p.Manifests[1]
	if json := string(m.JSON); strings.Contains(json, "userN") || !strings.Contains(json, `"subjects":[{"kind":"User","name":"a"}]`) {
		t.Errorf("applied JSON is %s", json)
	}
	if m.Hash != sha256.Sum256(m.JSON) || m.Object.Object["userNames"] != nil {
		t.Error("hash, object and JSON differ")
	}
}

func TestUnknownFieldsAreKeptInOtherPayloads(t *testing.T) {
	ours := strings.Replace(binding, `, annotations: {include.release.openshift.io/ha: "true"}`, "", 1)
	p, err := loadTree(t, map[string]string{file: ours}, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], file+":1 (document 1)") || !strings.Contains(p.Warnings[0], ".userNames: the API server rejects the object") {
		t.Errorf("warnings are %v", p.Warnings)
	}
	if !strings.Contains(string(p.Manifests[0].JSON), `"userNames":["a"]`) {
		t.Errorf("applied JSON is %s", p.Manifests[0].JSON)
	}
}

// The documents have inlined structs, quantities, numbers or strings, maps and
// recursive types.
func TestKnownFieldsOfAllTypesAreFound(t *testing.T) {
	for name, data := range map[string]string{
		"a deployment": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: a, namespace: b, labels: {c: d}, ownerReferences: [{uid: x}]}
spec:
  strategy: {rollingUpdate: {maxSurge: 10%}}
  template:
    metadata: {annotations: {any: thing}}
    spec:
      serviceAccount: old
      volumes: [{name: v, projected: {sources: [{configMap: {name: c, items: [{key: k, path: p}]}}]}}, {name: w, emptyDir: {sizeLimit: 1Gi}}]
      containers:
      - name: c
        resources: {limits: {cpu: 1, memory: 1Gi}}
        livenessProbe: {httpGet: {port: web, path: /}, periodSeconds: 3}
        lifecycle: {preStop: {exec: {command: [a]}}}
        env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}]
`,
		"a secret":          `{apiVersion: v1, kind: Secret, metadata: {name: a}, type: Opaque, data: {"0": eA==}, stringData: {b: c}}`,
		"a volume":          `{apiVersion: v1, kind: PersistentVolume, metadata: {name: a}, spec: {nfs: {server: s, path: /}, capacity: {storage: 1Gi}}}`,
		"a webhook":         `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: a}, webhooks: [{name: w, clientConfig: {caBundle: eA==, service: {name: s}}, rules: [{operations: [CREATE], apiGroups: [""], resources: [pods]}]}]}`,
		"a custom resource": `{apiVersion: example.com/v1, kind: Whatever, metadata: {name: a}, spec: {x: y}}`,
		"a newer version":   `{apiVersion: apps/v9, kind: Deployment, metadata: {name: a}, spec: {x: y}}`,
		"a null for a list": `{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: null}}`,
	} {
		docs, _, err := decodeFile(name, []byte(data), DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		gv, _ := schema.ParseGroupVersion(docs[0].content["apiVersion"].(string))
		kind, _ := docs[0].content["kind"].(string)
		if found, _ := unknownIn(gv.WithKind(kind), docs[0].content, false); len(found) > 0 {
			t.Errorf("%s: unknown fields %v", name, found)
		}
	}
}

func TestManyUnknownFieldsAreCounted(t *testing.T) {
	content := map[string]any{"metadata": map[string]any{"name": "a", "x": "y"}, "spec": "not a mapping"}
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		content[key] = "x"
	}
	found, total := unknownIn(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, content, false)
	if diff := cmp.Diff([]string{".a", ".b", ".c", ".d", ".e"}, found); diff != "" || total != 8 {
		t.Errorf("%d unknown (-want +got):\n%s", total, diff)
	}
}
