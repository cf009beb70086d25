// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// configMap returns a ConfigMap with annotations, in YAML flow style.
func configMap(name string, annotations map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		pairs = append(pairs, fmt.Sprintf("%q: %q", key, annotations[key]))
	}
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, annotations: {%s}}}\n", name, strings.Join(pairs, ", "))
}

func TestSelectionFollowsTheAnnotations(t *testing.T) {
	const include, set, gate = "include.release.openshift.io/ha", "release.openshift.io/feature-set", "release.openshift.io/feature-gate"
	ha := Selection{Profile: "ha"}
	for name, tc := range map[string]struct {
		annotations map[string]string
		selection   Selection
		want        string // reason to skip, or ""
	}{
		"no annotations, no profile":                {nil, Selection{}, ""},
		"no annotations, CVO profile":               {nil, ha, SkipProfile},
		"included":                                  {map[string]string{include: "true"}, ha, ""},
		"included with a value other than true":     {map[string]string{include: "false-except-for-x"}, ha, SkipProfile},
		"excluded":                                  {map[string]string{include: "true", "exclude.release.openshift.io/ha": "true"}, ha, SkipExcluded},
		"everything without a profile":              {map[string]string{include: "false"}, Selection{}, ""},
		"our profile":                               {map[string]string{"lockstep.dev/profile": "edge, ha"}, ha, ""},
		"another of our profiles":                   {map[string]string{"lockstep.dev/profile": "edge"}, ha, SkipProfile},
		"our profile without a selected profile":    {map[string]string{"lockstep.dev/profile": "edge"}, Selection{}, SkipProfile},
		"the default feature set":                   {map[string]string{set: "Default,TechPreviewNoUpgrade"}, Selection{}, ""},
		"another feature set":                       {map[string]string{set: "OKD"}, Selection{}, SkipFeatureSet},
		"the selected feature set":                  {map[string]string{set: "OKD"}, Selection{FeatureSet: "OKD"}, ""},
		"our feature set":                           {map[string]string{"lockstep.dev/feature-set": "edge, tech"}, Selection{FeatureSet: "tech"}, ""},
		"a feature set unknown to OpenShift":        {map[string]string{set: "Default,Tech"}, Selection{}, SkipInvalid},
		"a blank in OpenShift's list":               {map[string]string{set: "Default, OKD"}, Selection{}, SkipInvalid},
		"a feature set and gates":                   {map[string]string{set: "Default", gate: "A"}, Selection{}, SkipInvalid},
		"our feature set and gates":                 {map[string]string{"lockstep.dev/feature-set": "Default", gate: "A"}, Selection{}, SkipInvalid},
		"gates aren't evaluated":                    {map[string]string{gate: "A"}, Selection{}, ""},
		"a gate is missing":                         {map[string]string{gate: "A,B"}, Selection{EvaluateGates: true, FeatureGates: []string{"A"}}, SkipFeatureGate},
		"a gate must be disabled":                   {map[string]string{gate: "A,-B"}, Selection{EvaluateGates: true, FeatureGates: []string{"A"}}, ""},
		"a gate that must be disabled is enabled":   {map[string]string{gate: "-A"}, Selection{EvaluateGates: true, FeatureGates: []string{"A"}}, SkipFeatureGate},
		"a major version on another kind":           {map[string]string{"release.openshift.io/major-version": "1"}, Selection{}, SkipInvalid},
		"capabilities by default":                   {map[string]string{"capability.openshift.io/name": "A+B"}, Selection{}, ""},
		"a capability is missing":                   {map[string]string{"capability.openshift.io/name": "A+B"}, Selection{Baseline: BaselineNone, Capabilities: []string{"A"}}, SkipCapability},
		"all capabilities are enabled":              {map[string]string{"lockstep.dev/capability": "A+B"}, Selection{Baseline: BaselineNone, Capabilities: []string{"A", "B"}}, ""},
		"a delete manifest is selected like others": {map[string]string{include: "true", "release.openshift.io/delete": "true"}, ha, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := loadTree(t, map[string]string{file: configMap("a", tc.annotations)}, LoadOptions{Selection: tc.selection})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, s := range p.Skipped {
				got += s.Reason
			}
			if got != tc.want || len(p.Manifests)+len(p.Skipped) != 1 {
				t.Errorf("skipped for %q, want %q; %d manifests", got, tc.want, len(p.Manifests))
			}
		})
	}
}

func TestInjectionByCVOIsReplacedWithAWarning(t *testing.T) {
	workload := func(kind, annotation string) string {
		return "{apiVersion: apps/v1, kind: " + kind + ", metadata: {name: a, namespace: b, annotations: {include.release.openshift.io/ha: \"true\", " + annotation + "}}}\n---\n"
	}
	files := workload("Deployment", "config.openshift.io/inject-proxy: api") + workload("DaemonSet", "config.openshift.io/inject-proxy: api") +
		workload("StatefulSet", "config.openshift.io/inject-proxy: api") + workload("ReplicaSet", `config.openshift.io/inject-proxy: ""`) +
		configMap("c", map[string]string{"include.release.openshift.io/ha": "true", "config.openshift.io/inject-tls": "true"}) + "---\n" +
		configMap("d", map[string]string{"include.release.openshift.io/ha": "true", "config.openshift.io/inject-tls": "false"})
	p, err := loadTree(t, map[string]string{file: files}, LoadOptions{Selection: Selection{Profile: "ha"}})
	if err != nil {
		t.Fatal(err)
	}
	const at = "release-manifests/" + file
	want := []string{
		at + ":1 (document 1): apps Deployment b/a: annotation config.openshift.io/inject-proxy is ignored: the cluster's proxy isn't injected into api; set it in your own manifests",
		at + ":3 (document 2): apps DaemonSet b/a: annotation config.openshift.io/inject-proxy is ignored: the cluster's proxy isn't injected into api; set it in your own manifests",
		at + ":9 (document 5): ConfigMap c: annotation config.openshift.io/inject-tls is ignored: the cluster's TLS settings aren't injected; the manifest is applied unchanged",
	}
	if diff := cmp.Diff(want, p.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestMajorVersionsSelectFeatureGatesAndCRDs(t *testing.T) {
	for list, want := range map[string]string{
		"1,2": "", "4,5": SkipMajorVersion, "-1": SkipMajorVersion, "-3": "", "1,-3": "", "4,-3": SkipMajorVersion,
		"one": SkipInvalid, "1,-1": SkipInvalid, "-": SkipInvalid,
	} {
		gate := "{apiVersion: config.openshift.io/v1, kind: FeatureGate, metadata: {name: a, annotations: {release.openshift.io/major-version: \"" + list + "\"}}}\n"
		p, err := loadTree(t, map[string]string{file: gate + "---\n" + configMap("b", nil)}, LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, s := range p.Skipped {
			got += s.Reason
		}
		if got != want || p.Manifests[len(p.Manifests)-1].ID.Name != "b" {
			t.Errorf("%q: skipped for %q, want %q", list, got, want)
		}
		if warned := len(p.Warnings) == 1 && strings.Contains(p.Warnings[0], file+":1 (document 1): config.openshift.io FeatureGate a: annotation release.openshift.io/major-version"); warned != (want == SkipInvalid) {
			t.Errorf("%q: warnings are %v", list, p.Warnings)
		}
	}
}

func TestCVOPayloadsLoadWithWarningsThatHaveALine(t *testing.T) {
	const include = "include.release.openshift.io/ha"
	ok := func(name string) string { return configMap(name, map[string]string{include: "true"}) }
	tree := testTree(map[string]string{
		"0000_10_a_00.yaml": "\ufeff" + ok("a") + "---\n",
		"0000_10_b_00.yaml": strings.Replace(ok("b"), "kind: ConfigMap", "kind: Secret,\n kind: ConfigMap", 1),
		"other.yaml":        ok("c"),
		"0000_20_d_00.yaml": ok("d"),
		"0000_20_d_01.yaml": ok("d"),
		"0000_20_e_00.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: e, annotations: {" + include + ": \"true\", x: y}}\n",
	})
	p, err := load(&expected{"platform", "1.4.2"}, tree, LoadOptions{Selection: Selection{Profile: "ha"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`release-manifests/0000_10_b_00.yaml:2 (document 1): duplicate key "kind" in a mapping, also on line 1; remove one of them, since only the last value is used`,
		"release-manifests/0000_20_e_00.yaml:1 (document 1): ConfigMap e: annotation x is a boolean, must be a string; quote it",
		"release-manifests/other.yaml: invalid file name: must have the form 0000_<run level>_<component>_<rest>.yaml",
		"release-manifests/0000_20_d_01.yaml:1 (document 1): ConfigMap d is already defined at release-manifests/0000_20_d_00.yaml:1 (document 1); the last manifest is applied",
	}
	if diff := cmp.Diff(want, p.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if len(p.Manifests) != 4 || len(p.Skipped) != 2 {
		t.Errorf("%d manifests and %d skipped, want 4 and 2", len(p.Manifests), len(p.Skipped))
	}
}

func TestACapabilityWithManagedObjectsStaysEnabled(t *testing.T) {
	none := Selection{Baseline: BaselineNone}
	previous, err := loadTree(t, map[string]string{file: configMap("a", nil)}, LoadOptions{Selection: none})
	if err != nil {
		t.Fatal(err)
	}
	moved := map[string]string{file: configMap("a", map[string]string{"lockstep.dev/capability": "Extra"}) + "---\n" +
		configMap("b", map[string]string{"lockstep.dev/capability": "Extra"}) + "---\n" +
		configMap("c", map[string]string{"lockstep.dev/capability": "Other"})}
	next, err := loadTree(t, moved, LoadOptions{Selection: none, Previous: previous})
	if err != nil {
		t.Fatal(err)
	}
	last, err := loadTree(t, moved, LoadOptions{Selection: none, Previous: next})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Payload{next, last} {
		if len(p.Manifests) != 2 || !slices.Equal(p.ImplicitCapabilities, []string{"Extra"}) {
			t.Errorf("%d manifests, implicit capabilities %v; want 2 and Extra", len(p.Manifests), p.ImplicitCapabilities)
		}
	}
}
