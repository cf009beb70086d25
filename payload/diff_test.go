// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDiffListsObjectsAndFields(t *testing.T) {
	load := func(data string) *Payload {
		t.Helper()
		p, err := loadTree(t, map[string]string{file: data}, LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := load(`
{apiVersion: apps/v1, kind: Deployment, metadata: {name: api}, spec: {replicas: 2, containers: [{name: side, image: s1}, {name: api, image: a1}], args: [x, z]}}
---
{apiVersion: v1, kind: Secret, metadata: {name: s, annotations: {a: "eA=="}}, stringData: {password: one, same: x}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: gone}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: same}}
`)
	after := load(`
{apiVersion: v1, kind: ConfigMap, metadata: {name: same}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: api, labels: {app.kubernetes.io/name: api}}, spec: {containers: [{name: api, image: a2}, {name: new}], args: [x]}}
---
{apiVersion: v1, kind: Secret, metadata: {name: s, annotations: {a: "eQ=="}}, stringData: {password: two, same: x, more: z}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: fresh}}
`)
	want := []Change{
		{Object: ObjectID{Kind: "ConfigMap", Name: "fresh"}, Kind: Added},
		{Object: ObjectID{Kind: "ConfigMap", Name: "gone"}, Kind: Removed},
		{Object: ObjectID{Kind: "Secret", Name: "s"}, Kind: Changed, Fields: []FieldChange{
			{"data.more", "", masked},
			{"data.password", masked, masked},
			{"metadata.annotations.a", masked, masked},
		}},
		{Object: ObjectID{Group: "apps", Kind: "Deployment", Name: "api"}, Kind: Changed, Fields: []FieldChange{
			{"metadata.labels", "", `{"app.kubernetes.io/name":"api"}`},
			{"spec.args[1]", `"z"`, ""},
			{"spec.containers[side]", `{"image":"s1","name":"side"}`, ""},
			{"spec.containers[api].image", `"a1"`, `"a2"`},
			{"spec.containers[new]", "", `{"name":"new"}`},
			{"spec.replicas", "2", ""},
		}},
	}
	if diff := cmp.Diff(want, Diff(before, after)); diff != "" {
		t.Errorf("Diff (-want +got):\n%s", diff)
	}
	if got := Diff(before, before); got != nil {
		t.Errorf("Diff of equal payloads: %v", got)
	}
}
