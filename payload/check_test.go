// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"strings"
	"testing"
)

func TestOnlyVariantsMayDefineTheSameObject(t *testing.T) {
	const profile, set, capability = "lockstep.dev/profile", "lockstep.dev/feature-set", "lockstep.dev/capability"
	const gate, ha, ibm = "release.openshift.io/feature-gate", "include.release.openshift.io/ha", "include.release.openshift.io/ibm"
	for name, tc := range map[string]struct {
		a, b map[string]string
		// collide is true for duplicates, warning if they are only a warning.
		collide, warning bool
	}{
		"no annotations":                      {nil, nil, true, false},
		"different profiles":                  {map[string]string{profile: "edge"}, map[string]string{profile: "core"}, false, false},
		"a common profile":                    {map[string]string{profile: "edge, far"}, map[string]string{profile: "core,far"}, true, false},
		"a profile and none":                  {map[string]string{profile: "edge"}, nil, true, false},
		"different feature sets":              {map[string]string{set: "Default"}, map[string]string{set: "Tech"}, false, false},
		"a common feature set":                {map[string]string{set: "Default,Tech"}, map[string]string{set: "Tech"}, true, false},
		"a feature set and none":              {map[string]string{set: "Tech"}, nil, true, false},
		"one profile, different feature sets": {map[string]string{profile: "edge", set: "Default"}, map[string]string{profile: "edge", set: "Tech"}, false, false},
		"different capabilities":              {map[string]string{capability: "A"}, map[string]string{capability: "B"}, true, false},
		"different gates":                     {map[string]string{gate: "A"}, map[string]string{gate: "-A"}, true, false},
		"CVO profiles":                        {map[string]string{ha: "true"}, map[string]string{ibm: "true"}, false, false},
		"a common CVO profile":                {map[string]string{ha: "true"}, map[string]string{ha: "true", ibm: "true"}, true, true},
		"a CVO profile that is excluded":      {map[string]string{ha: "true"}, map[string]string{ha: "true", "exclude.release.openshift.io/ha": "true"}, false, false},
		"CVO feature sets":                    {map[string]string{ha: "true", "release.openshift.io/feature-set": "Default"}, map[string]string{ha: "true", "release.openshift.io/feature-set": "OKD"}, false, false},
		"a feature set unknown to CVO":        {map[string]string{ha: "true"}, map[string]string{ha: "true", "release.openshift.io/feature-set": "Tech"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Check(testTree(map[string]string{file: configMap("a", tc.a) + "---\n" + configMap("a", tc.b)}))
			if tc.collide && !tc.warning {
				if e := refusal(t, err); !strings.Contains(e.Error(), file+":3 (document 2): ConfigMap a is already defined at release-manifests/"+file+":1 (document 1)") {
					t.Errorf("error is %q", e)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if warned := strings.Contains(strings.Join(p.Warnings, "\n"), "may select both"); warned != tc.warning {
				t.Errorf("warnings are %v", p.Warnings)
			}
		})
	}
}

// An empty selection excludes these manifests.
func TestEveryVariantIsChecked(t *testing.T) {
	for want, annotations := range map[string]map[string]string{
		"lockstep.dev/wait: value":              {"lockstep.dev/profile": "edge", "lockstep.dev/wait": "forever"},
		"unknown annotation lockstep.dev/other": {"lockstep.dev/feature-set": "Tech", "lockstep.dev/other": "x"},
		"isn't a JSON pointer":                  {"lockstep.dev/capability": "A", "lockstep.dev/ignore-fields": "x"},
	} {
		_, err := Check(testTree(map[string]string{file: configMap("a", annotations)}))
		if e := refusal(t, err); !strings.Contains(e.Error(), want) {
			t.Errorf("error is %q, want %q", e, want)
		}
	}
	forbidden := "{apiVersion: lockstep.dev/v1alpha1, kind: TrustPolicy, metadata: {name: root, annotations: {lockstep.dev/profile: edge}}}\n"
	if _, err := Check(testTree(map[string]string{file: forbidden})); refusal(t, err).Reason() != ReasonForbidden {
		t.Errorf("a variant that changes trust: %v", err)
	}
}

func TestCheckAcceptsARealPayload(t *testing.T) {
	p, err := Check(realPayload(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Manifests)+len(p.Skipped) != 1022 || len(p.Skipped) > 10 {
		t.Errorf("%d manifests and %d skipped, want 1022 documents with at most 10 skipped: %v", len(p.Manifests), len(p.Skipped), p.Skipped)
	}
	if n := strings.Count(strings.Join(p.Warnings, "\n"), "may select both"); n != 1 {
		t.Errorf("%d duplicate manifests, want 1:\n%s", n, strings.Join(p.Warnings, "\n"))
	}
}

func TestHealthRulesCannotReadSecrets(t *testing.T) {
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s, annotations: {lockstep.dev/health: \"has(self.data)\"}}\n"
	_, err := loadTree(t, map[string]string{file: configMap("a", nil) + "---\n" + secret}, LoadOptions{})
	if e := refusal(t, err); !strings.Contains(e.Error(), file+":3 (document 2): Secret s: annotation lockstep.dev/health: health rules can't read Secrets") {
		t.Errorf("error is %q", e)
	}
}
