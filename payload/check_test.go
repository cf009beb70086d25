// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"strings"
	"testing"
)

func TestOnlyVariantsMayShareAnIdentity(t *testing.T) {
	const profile, set, capability = "lockstep.dev/profile", "lockstep.dev/feature-set", "lockstep.dev/capability"
	const gate, ha, ibm = "release.openshift.io/feature-gate", "include.release.openshift.io/ha", "include.release.openshift.io/ibm"
	for name, tc := range map[string]struct {
		a, b map[string]string
		// collide, and by a warning only.
		collide, warning bool
	}{
		"nothing said":                                {nil, nil, true, false},
		"other profiles":                              {map[string]string{profile: "edge"}, map[string]string{profile: "core"}, false, false},
		"a profile in common":                         {map[string]string{profile: "edge, far"}, map[string]string{profile: "core,far"}, true, false},
		"a profile and any":                           {map[string]string{profile: "edge"}, nil, true, false},
		"other feature sets":                          {map[string]string{set: "Default"}, map[string]string{set: "Tech"}, false, false},
		"a feature set in common":                     {map[string]string{set: "Default,Tech"}, map[string]string{set: "Tech"}, true, false},
		"a feature set and any":                       {map[string]string{set: "Tech"}, nil, true, false},
		"one profile, other feature sets":             {map[string]string{profile: "edge", set: "Default"}, map[string]string{profile: "edge", set: "Tech"}, false, false},
		"other capabilities, which both may be there": {map[string]string{capability: "A"}, map[string]string{capability: "B"}, true, false},
		"gates, which nobody may evaluate":            {map[string]string{gate: "A"}, map[string]string{gate: "-A"}, true, false},
		"CVO's profiles":                              {map[string]string{ha: "true"}, map[string]string{ibm: "true"}, false, false},
		"a profile of CVO's in common":                {map[string]string{ha: "true"}, map[string]string{ha: "true", ibm: "true"}, true, true},
		"one that CVO excludes again":                 {map[string]string{ha: "true"}, map[string]string{ha: "true", "exclude.release.openshift.io/ha": "true"}, false, false},
		"CVO's feature sets":                          {map[string]string{ha: "true", "release.openshift.io/feature-set": "Default"}, map[string]string{ha: "true", "release.openshift.io/feature-set": "OKD"}, false, false},
		"one that no CVO includes":                    {map[string]string{ha: "true"}, map[string]string{ha: "true", "release.openshift.io/feature-set": "Tech"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Check(testTree(map[string]string{file: configMap("a", tc.a) + "---\n" + configMap("a", tc.b)}))
			if tc.collide && !tc.warning {
				if e := refusal(t, err); !strings.Contains(e.Error(), file+":3 (document 2): ConfigMap a stands in release-manifests/"+file+":1 (document 1) already") {
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

// A load with an empty selection would leave these out unread.
func TestEveryVariantIsChecked(t *testing.T) {
	for want, annotations := range map[string]map[string]string{
		"lockstep.dev/wait: value": {"lockstep.dev/profile": "edge", "lockstep.dev/wait": "forever"},
		"isn't known":              {"lockstep.dev/feature-set": "Tech", "lockstep.dev/other": "x"},
		"isn't a JSON pointer":     {"lockstep.dev/capability": "A", "lockstep.dev/ignore-fields": "x"},
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

func TestARealPayloadIsCheckedWhole(t *testing.T) {
	p, err := Check(realPayload(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Manifests)+len(p.Skipped) != 1022 || len(p.Skipped) > 10 {
		t.Errorf("%d manifests and %d skipped, want 1022 documents of which few are skipped: %v", len(p.Manifests), len(p.Skipped), p.Skipped)
	}
	if n := strings.Count(strings.Join(p.Warnings, "\n"), "may select both"); n != 1 {
		t.Errorf("%d manifests stand twice, want 1:\n%s", n, strings.Join(p.Warnings, "\n"))
	}
}

func TestAHealthRuleMayNotReadASecret(t *testing.T) {
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s, annotations: {lockstep.dev/health: \"has(self.data)\"}}\n"
	_, err := loadTree(t, map[string]string{file: configMap("a", nil) + "---\n" + secret}, LoadOptions{})
	if e := refusal(t, err); !strings.Contains(e.Error(), file+":3 (document 2): Secret s: annotation lockstep.dev/health: a rule may not read a Secret") {
		t.Errorf("error is %q", e)
	}
}
