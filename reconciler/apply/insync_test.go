// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"testing"
)

func TestInSyncReportsWhetherAnApplySendsARequest(t *testing.T) {
	env := newEnv(t)
	ms := env.manifests(webSet)[:1]
	inSync := func() bool {
		t.Helper()
		is, err := env.engine.InSync(t.Context(), &ms[0])
		must(t, err)
		return is
	}
	if inSync() {
		t.Error("an object that was never applied is in sync")
	}
	env.apply(ms, Updating)
	env.awaitEvents(ms)
	if !inSync() {
		t.Error("an applied object isn't in sync")
	}
	changed := ms[0]
	changed.Hash[0] ^= 1
	if is, err := env.engine.InSync(t.Context(), &changed); is || err != nil {
		t.Errorf("a changed manifest is in sync: %t %v", is, err)
	}
}

func TestAnApplyReportsWhetherItChangedTheSpecification(t *testing.T) {
	env := newEnv(t)
	const text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api, namespace: NS, labels: {version: \"1\"}}\n" +
		"spec: {replicas: 1, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, spec: {containers: [{name: api, image: example.com/api}]}}}"
	for _, step := range []struct {
		name, from, to string
		want           bool
	}{
		{"creation", "", "", false},
		{"a new label", `version: "1"`, `version: "2"`, false},
		{"a new image", "example.com/api", "example.com/api:2", true},
	} {
		ms := env.manifests(strings.Replace(text, step.from, step.to, 1))
		ch := env.apply(ms, Updating)[0]
		if got := ch.Respecified != nil; got != step.want || got && ch.Respecified.ResourceVersion != ch.ResourceVersion {
			t.Errorf("%s: the specification changed: %t, want %t", step.name, got, step.want)
		}
		env.awaitEvents(ms)
	}
}
