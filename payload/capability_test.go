// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// extras is a payload with objects a and b of capability Extra and c of
// capability Other.
func extras() map[string]string {
	return map[string]string{file: configMap("a", map[string]string{"lockstep.dev/capability": "Extra"}) + "---\n" +
		configMap("b", map[string]string{"lockstep.dev/capability": "Extra"}) + "---\n" +
		configMap("c", map[string]string{"lockstep.dev/capability": "Other"})}
}

// active lists the included objects and the capabilities of a payload.
type active struct {
	Names, Enabled, Implicit []string
}

func activeOf(p *Payload) active {
	out := active{Enabled: p.EnabledCapabilities, Implicit: p.ImplicitCapabilities}
	for i := range p.Manifests {
		out.Names = append(out.Names, p.Manifests[i].ID.Name)
	}
	return out
}

func TestEnabledCapabilitiesStayEnabled(t *testing.T) {
	none := Selection{Baseline: BaselineNone}
	a := ObjectID{Kind: "ConfigMap", Name: "a"}
	for name, tc := range map[string]struct {
		opts LoadOptions
		want active
	}{
		"capabilities without a request aren't enabled":                 {LoadOptions{Selection: none}, active{}},
		"All requests all capabilities of the payload":                  {LoadOptions{}, active{[]string{"a", "b", "c"}, []string{"Extra", "Other"}, nil}},
		"requested capabilities aren't implicit":                        {LoadOptions{Selection: Selection{Baseline: BaselineNone, Capabilities: []string{"Other"}}, Enabled: []string{"Other"}}, active{[]string{"c"}, []string{"Other"}, nil}},
		"previously enabled capabilities are implicit":                  {LoadOptions{Selection: none, Enabled: []string{"Other"}}, active{[]string{"c"}, []string{"Other"}, []string{"Other"}}},
		"previously enabled capabilities that the payload lacks stay":   {LoadOptions{Selection: none, Enabled: []string{"Gone"}}, active{nil, []string{"Gone"}, []string{"Gone"}}},
		"capabilities of managed objects are implicit":                  {LoadOptions{Selection: none, Managed: []ObjectID{a}}, active{[]string{"a", "b"}, []string{"Extra"}, []string{"Extra"}}},
		"capabilities enabled by the previous payload are implicit":     {LoadOptions{Selection: none, Previous: &Payload{EnabledCapabilities: []string{"Extra"}}}, active{[]string{"a", "b"}, []string{"Extra"}, []string{"Extra"}}},
		"capabilities that the previous payload skipped aren't enabled": {LoadOptions{Selection: none, Previous: &Payload{Skipped: []Skipped{{ID: a}}}}, active{}},
		"capabilities that no payload has aren't enabled":               {LoadOptions{Selection: Selection{Baseline: BaselineNone, Capabilities: []string{"Typo"}}}, active{}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := loadTree(t, extras(), tc.opts)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, activeOf(p)); diff != "" {
				t.Errorf("active (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExcludedManifestsEnableNoCapability(t *testing.T) {
	files := map[string]string{file: configMap("a", map[string]string{"lockstep.dev/capability": "Extra", "lockstep.dev/profile": "edge"})}
	p, err := loadTree(t, files, LoadOptions{Selection: Selection{Baseline: BaselineNone}, Managed: []ObjectID{{Kind: "ConfigMap", Name: "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.EnabledCapabilities) != 0 {
		t.Errorf("enabled are %v", p.EnabledCapabilities)
	}
}

func TestBaselinesAreOpenShiftsSets(t *testing.T) {
	for baseline, want := range map[string]struct {
		size    int
		has, no string
	}{
		"None":     {0, "", "baremetal"},
		"v4.11":    {4, "MachineAPI", "Console"},
		"v4.12":    {8, "Console", "NodeTuning"},
		"v4.13":    {9, "NodeTuning", "Build"},
		"v4.14":    {12, "ImageRegistry", "CloudCredential"},
		"v4.15":    {14, "CloudCredential", "Ingress"},
		"v4.16":    {16, "Ingress", "OperatorLifecycleManagerV1"},
		"v4.17":    {16, "CloudControllerManager", "OperatorLifecycleManagerV1"},
		"v4.18":    {17, "OperatorLifecycleManagerV1", "ClusterAPI"},
		"vCurrent": {19, "ClusterAPI", "Other"},
	} {
		a := Selection{Baseline: baseline}.requested()
		if len(a.names) != want.size || want.has != "" && !a.has(want.has) || a.has(want.no) {
			t.Errorf("%s has %v", baseline, a.names)
		}
	}
	if all := (Selection{}).requested(); !all.has("anything") {
		t.Error("a capability isn't enabled without a baseline")
	}
}

func TestABaselineAndListedCapabilitiesAreEnabled(t *testing.T) {
	files := map[string]string{file: configMap("a", map[string]string{"capability.openshift.io/name": "Console"}) + "---\n" +
		configMap("b", map[string]string{"capability.openshift.io/name": "NodeTuning"}) + "---\n" +
		configMap("c", map[string]string{"capability.openshift.io/name": "Console+NodeTuning"})}
	for name, tc := range map[string]struct {
		selection Selection
		want      []string
	}{
		"a set":            {Selection{Baseline: "v4.12"}, []string{"a"}},
		"a later set":      {Selection{Baseline: "v4.13"}, []string{"a", "b", "c"}},
		"a set and a list": {Selection{Baseline: "v4.11", Capabilities: []string{"NodeTuning"}}, []string{"b"}},
	} {
		p, err := loadTree(t, files, LoadOptions{Selection: tc.selection})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, activeOf(p).Names); diff != "" {
			t.Errorf("%s: applied (-want +got):\n%s", name, diff)
		}
	}
}

func TestAnUnknownBaselineIsRejectedWithTheKnownOnes(t *testing.T) {
	_, err := loadTree(t, extras(), LoadOptions{Selection: Selection{Baseline: "v4.99"}})
	if e := refusal(t, err); !strings.Contains(e.Error(), `"v4.99"`) || !strings.Contains(e.Error(), strings.Join(Baselines(), ", ")) {
		t.Errorf("error is %q", e)
	}
}

func TestCapabilitiesAreBounded(t *testing.T) {
	many := make([]string, MaxCapabilities)
	for i := range many {
		many[i] = strings.Repeat("x", i/26+1) + string(rune('a'+i%26))
	}
	slices.Sort(many)
	if _, err := loadTree(t, extras(), LoadOptions{Enabled: many}); refusal(t, err).Reason() != ReasonLimit {
		t.Errorf("%d capabilities and two more: %v", MaxCapabilities, err)
	}
	long := map[string]string{file: configMap("a", map[string]string{"lockstep.dev/capability": strings.Repeat("x", maxNameLength+1)})}
	if _, err := loadTree(t, long, LoadOptions{}); refusal(t, err).Reason() != ReasonLimit {
		t.Errorf("a long name: %v", err)
	}
}
