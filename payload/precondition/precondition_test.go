// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package precondition

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/payload"
)

// release is a payload of the given objects in YAML.
func release(t *testing.T, version string, objects ...string) *payload.Payload {
	t.Helper()
	p := &payload.Payload{Product: "platform", Version: version}
	for _, text := range objects {
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: object})
		if err != nil {
			t.Fatal(err)
		}
		m.File, m.Line = "f.yaml", 1
		p.Manifests = append(p.Manifests, m)
	}
	return p
}

const (
	pinned   = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: {spec: {containers: [{image: 'r/a@sha256:1'}], initContainers: [{image: 'r/i@sha256:2'}]}}}}"
	unpinned = "{apiVersion: batch/v1, kind: CronJob, metadata: {name: b}, spec: {jobTemplate: {spec: {template: {spec: {containers: [{image: 'r/b:latest'}]}}}}}}"
	widgets  = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com}, spec: {group: example.com, names: {kind: Widget}, versions: [{name: v1}]}}"
	widget   = "{apiVersion: example.com/v1, kind: Widget, metadata: {name: w}}"
)

func TestPreconditions(t *testing.T) {
	id := func(name string) payload.ObjectID { return payload.ObjectID{Kind: "ConfigMap", Name: name} }
	serves := func(kinds ...string) func(schema.GroupVersionKind) bool {
		return func(gvk schema.GroupVersionKind) bool { return strings.Contains(strings.Join(kinds, " "), gvk.Kind) }
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  string // name of a violation; "warn " before a warning, "" for none
		text  string
	}{
		"the first release":                     {Facts{Target: release(t, "1.0.0")}, "", ""},
		"the next patch":                        {Facts{Target: release(t, "1.4.3"), Current: "1.4.2"}, "", ""},
		"the next minor":                        {Facts{Target: release(t, "1.5.0"), Current: "1.4.2"}, "", ""},
		"two minors on":                         {Facts{Target: release(t, "1.6.0"), Current: "1.4.2"}, GiantHop, "update to 1.5 first"},
		"another major":                         {Facts{Target: release(t, "2.0.0"), Current: "1.4.2"}, GiantHop, "major"},
		"below the release's minimum":           {Facts{Target: minimum(release(t, "1.5.0"), "1.4.3"), Current: "1.4.2"}, GiantHop, "from 1.4.3 on only"},
		"back to the preceding":                 {Facts{Target: release(t, "1.4.1"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1"}}, "", ""},
		"back to an earlier one":                {Facts{Target: release(t, "1.4.0"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1", "1.4.0"}}, Rollback, "spec.rollback.to: 1.4.0"},
		"back from one that never was level":    {Facts{Target: release(t, "1.4.1"), Current: "1.4.2", Completed: []string{"1.4.1"}}, "", ""},
		"back across a minor to where it was":   {Facts{Target: release(t, "1.3.9"), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}}, Rollback, "set spec.rollback.to: 1.3.9"},
		"back across a major to where it was":   {Facts{Target: release(t, "0.4.2"), Current: "1.4.2", Completed: []string{"1.4.2", "0.4.2"}}, Rollback, "another minor version than 1.4.2"},
		"back across a minor as the owner says": {Facts{Target: release(t, "1.3.9"), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}, RollbackTo: "1.3.9"}, "", ""},
		"back where the owner says":             {Facts{Target: release(t, "1.2.0"), Current: "1.4.2", RollbackTo: "1.2.0"}, "", ""},
		"something objects to a minor":          {Facts{Target: release(t, "1.5.0"), Current: "1.4.2", Blockers: []Blocker{{"etcd", "Degraded", "a member is down"}}}, Upgradeable, "etcd (Degraded: a member is down)"},
		"something objects to a patch":          {Facts{Target: release(t, "1.4.3"), Current: "1.4.2", Blockers: []Blocker{{"etcd", "Degraded", "x"}}}, "warn Upgradeable", ""},
		"below the floor":                       {Facts{Target: release(t, "1.4.2"), Floor: "1.5.0"}, VersionFloor, "lowest version of platform"},
		"at the floor":                          {Facts{Target: release(t, "1.5.0"), Floor: "1.5.0"}, "", ""},
		"a kubelet is newer":                    {Facts{Target: release(t, "1.0.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.36.9", "n2": "v1.37.0"}}, HostSkew, "n2 (1.37.0)"},
		"a kubelet is too old":                  {Facts{Target: release(t, "1.0.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.33.0", "n2": "v1.32.1"}}, HostSkew, "n2 (1.32.1)"},
		"a kind is gone":                        {Facts{Target: release(t, "1.0.0", widget), Serves: serves("Deployment")}, APIRemoval, "example.com/v1 Widget (f.yaml:1)"},
		"a kind comes along":                    {Facts{Target: release(t, "1.0.0", widgets, widget), Serves: serves("CustomResourceDefinition")}, "", ""},
		"a stored version stays":                {Facts{Target: release(t, "1.0.0", widgets), StoredVersions: map[string][]string{"widgets.example.com": {"v1"}}}, "", ""},
		"a stored version goes":                 {Facts{Target: release(t, "1.0.0", widgets), StoredVersions: map[string][]string{"widgets.example.com": {"v1beta1", "v1"}}}, StoredVersions, "widgets.example.com drops v1beta1"},
		"an object of another set":              {Facts{Target: release(t, "1.0.0"), Owners: map[payload.ObjectID]string{id("a"): "clusterrelease/site"}}, OwnedByOther, "ConfigMap a (clusterrelease/site)"},
		"too much would go":                     {Facts{Target: release(t, "1.0.0"), Managed: []payload.ObjectID{id("a"), id("b"), id("c"), id("d"), id("e"), id("f")}, Prune: true, MaxPruned: 20}, PruneGuard, "6 of 6 objects"},
		"few of a small release may go":         {Facts{Target: release(t, "1.0.0"), Managed: []payload.ObjectID{id("a"), id("b")}, Prune: true, MaxPruned: 20}, "", ""},
		"all may go":                            {Facts{Target: release(t, "1.0.0"), Managed: []payload.ObjectID{id("a")}, Prune: true, MaxPruned: 100}, "", ""},
		"nothing is pruned":                     {Facts{Target: release(t, "1.0.0"), Managed: []payload.ObjectID{id("a")}}, "", ""},
		"images by digest":                      {Facts{Target: release(t, "1.0.0", pinned)}, "", ""},
		"an image by tag":                       {Facts{Target: release(t, "1.0.0", pinned, unpinned)}, "warn UnpinnedImage", "r/b:latest in batch CronJob b"},
		"a version that isn't one is no matter": {Facts{Target: release(t, "x"), Current: "1.0.0"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, text := "", ""
			for _, v := range Evaluate(&tc.facts, nil) {
				if !v.Blocking {
					got += "warn "
				}
				got, text = got+v.Name, text+v.Message
			}
			if got != tc.want || !strings.Contains(text, tc.text) {
				t.Errorf("violations %q (%s), want %q (%s)", got, text, tc.want, tc.text)
			}
		})
	}
}

func minimum(p *payload.Payload, version string) *payload.Payload {
	p.MinimumVersion = version
	return p
}

func TestAWaiverHoldsForItsNameOnly(t *testing.T) {
	facts := Facts{Target: release(t, "2.0.0"), Current: "1.0.0", Floor: "3.0.0"}
	type row struct {
		Name   string
		Waived bool
	}
	for name, tc := range map[string]struct {
		waivers []string
		want    []row
		blocks  bool
	}{
		"none":    {nil, []row{{GiantHop, false}, {VersionFloor, false}}, true},
		"one":     {[]string{GiantHop}, []row{{GiantHop, true}, {VersionFloor, false}}, true},
		"both":    {[]string{GiantHop, VersionFloor}, []row{{GiantHop, true}, {VersionFloor, true}}, false},
		"no star": {[]string{"*", ""}, []row{{GiantHop, false}, {VersionFloor, false}}, true},
	} {
		violations := Evaluate(&facts, tc.waivers)
		var got []row
		for _, v := range violations {
			got = append(got, row{v.Name, v.Waived})
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || Blocks(violations) != tc.blocks {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFactsThatCouldNotBeHadHoldNothingBack(t *testing.T) {
	if got := Evaluate(&Facts{}, nil); got != nil {
		t.Errorf("violations of nothing: %v", got)
	}
}
