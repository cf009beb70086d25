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
	widgets  = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com}, spec: {group: example.com, names: {kind: Widget}, versions: [{name: v1, served: true}, {name: v1beta1, served: false}]}}"
	widget   = "{apiVersion: example.com/v1, kind: Widget, metadata: {name: w}}"
	older    = "{apiVersion: example.com/v1beta1, kind: Widget, metadata: {name: w}}"
	service  = "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.example.com}, spec: {group: example.com, version: v1}}"
)

func TestPreconditions(t *testing.T) {
	id := func(name string) payload.ObjectID { return payload.ObjectID{Kind: "ConfigMap", Name: name} }
	six := []payload.ObjectID{id("a"), id("b"), id("c"), id("d"), id("e"), id("f")}
	crd := payload.ObjectID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "widgets.example.com"}
	serves := func(kinds ...string) func(schema.GroupVersionKind) bool {
		return func(gvk schema.GroupVersionKind) bool { return strings.Contains(strings.Join(kinds, " "), gvk.Kind) }
	}
	for name, tc := range map[string]struct {
		facts Facts
		want  string // name of a violation; "warn " before a warning, "" for none
		text  string
	}{
		"the first release":                  {Facts{Target: release(t, "1.0.0")}, "", ""},
		"the next patch":                     {Facts{Target: release(t, "1.4.3"), Current: "1.4.2"}, "", ""},
		"the next minor":                     {Facts{Target: release(t, "1.5.0"), Current: "1.4.2"}, "", ""},
		"two minors on":                      {Facts{Target: release(t, "1.6.0"), Current: "1.4.2"}, GiantHop, "update to 1.5 first"},
		"another major":                      {Facts{Target: release(t, "2.0.0"), Current: "1.4.2"}, GiantHop, "major"},
		"below the release's minimum":        {Facts{Target: minimum(release(t, "1.5.0"), "1.4.3"), Current: "1.4.2"}, GiantHop, "from 1.4.3 on only"},
		"back to the preceding":              {Facts{Target: release(t, "1.4.1"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1"}}, "", ""},
		"back to an earlier one":             {Facts{Target: release(t, "1.4.0"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1", "1.4.0"}}, Rollback, "spec.rollback.to: 1.4.0"},
		"back from one that never was level": {Facts{Target: release(t, "1.4.1"), Current: "1.4.2", Completed: []string{"1.4.1"}}, "", ""},
		"back across a minor of a release without Kubernetes": {Facts{Target: release(t, "1.3.9"), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}}, "", ""},
		"back across a minor to where it was":                 {Facts{Target: listing(release(t, "1.3.9")), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}}, Rollback, "set spec.rollback.to: 1.3.9"},
		"back across a major to where it was":                 {Facts{Target: listing(release(t, "0.4.2")), Current: "1.4.2", Completed: []string{"1.4.2", "0.4.2"}}, Rollback, "another minor version than 1.4.2"},
		"back across a minor as the owner says":               {Facts{Target: listing(release(t, "1.3.9")), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}, RollbackTo: "1.3.9"}, "", ""},
		"back across a minor on one Kubernetes":               {Facts{Target: carries(release(t, "1.3.9"), "1.36.1"), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}, APIServer: "v1.36.3"}, "", ""},
		"back within a minor across a Kubernetes":             {Facts{Target: carries(release(t, "1.4.1"), "1.35.9"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1"}, APIServer: "v1.36.3"}, Rollback, "1.4.1 carries Kubernetes 1.35.9, and 1.36.3 runs"},
		"back amid an update":                                 {Facts{Target: release(t, "1.4.2"), Current: "1.4.2", Applying: "1.5.0", APIServer: "v1.37.0"}, "", ""},
		"back amid an update that has moved the API server":   {Facts{Target: carries(release(t, "1.4.2"), "1.36.3"), Current: "1.4.2", Applying: "1.5.0", APIServer: "v1.37.0"}, Rollback, "1.4.2 carries Kubernetes 1.36.3, and 1.5.0, which is being applied, has brought 1.37.0"},
		"back amid an update that hasn't moved it yet":        {Facts{Target: carries(release(t, "1.4.2"), "1.36.3"), Current: "1.4.2", Applying: "1.5.0", APIServer: "v1.36.3"}, "", ""},
		"back amid an update as the owner says":               {Facts{Target: carries(release(t, "1.4.2"), "1.36.3"), Current: "1.4.2", Applying: "1.5.0", APIServer: "v1.37.0", RollbackTo: "1.4.2"}, "", ""},
		"on under an API server that somebody else has moved": {Facts{Target: carries(release(t, "1.4.3"), "1.36.3"), Current: "1.4.2", Applying: "1.4.2", APIServer: "v1.37.0"}, "", ""},
		"back where the owner says":                           {Facts{Target: release(t, "1.2.0"), Current: "1.4.2", RollbackTo: "1.2.0"}, "", ""},
		"from a version that it names":                        {Facts{Target: after(release(t, "1.4.3"), "1.4.1", "1.4.2"), Current: "1.4.2"}, "", ""},
		"from a version that it doesn't name":                 {Facts{Target: after(release(t, "1.4.3"), "1.4.1"), Current: "1.4.2"}, "warn RecommendedUpdate", "1.4.2 isn't among the versions that 1.4.3 names as its predecessors (1.4.1)"},
		"back from a version that it can't name":              {Facts{Target: after(release(t, "1.4.1"), "1.4.0"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1"}}, "", ""},
		"something objects to a minor":                        {Facts{Target: release(t, "1.5.0"), Current: "1.4.2", Blockers: []Blocker{{"etcd", "Degraded", "a member is down"}}}, Upgradeable, "etcd (Degraded: a member is down)"},
		"something objects to a patch":                        {Facts{Target: release(t, "1.4.3"), Current: "1.4.2", Blockers: []Blocker{{"etcd", "Degraded", "x"}}}, "warn Upgradeable", ""},
		"hosts lag behind at a minor":                         {Facts{Target: release(t, "1.5.0"), Current: "1.4.2", APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.34.0", "n2": "v1.33.4"}}, Upgradeable, "1.36.3: n2 (1.33.4)"},
		"hosts lag behind at a patch":                         {Facts{Target: release(t, "1.4.3"), Current: "1.4.2", APIServer: "v1.36.3", Kubelets: map[string]string{"n2": "v1.33.4"}}, "", ""},
		"hosts lag behind, and it's well":                     {Facts{Target: carries(release(t, "1.5.0"), "1.36.4"), Current: "1.4.2", APIServer: "v1.36.3", Kubelets: map[string]string{"n2": "v1.33.4"}}, "", ""},
		"below the floor":                                     {Facts{Target: release(t, "1.4.2"), Floor: "1.5.0"}, VersionFloor, "lowest version of platform"},
		"at the floor":                                        {Facts{Target: release(t, "1.5.0"), Floor: "1.5.0"}, "", ""},
		"a kubelet is newer now":                              {Facts{Target: release(t, "1.0.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.36.9", "n2": "v1.37.0"}}, "warn HostSkew", "newer are n2 (1.37.0)"},
		"a kubelet is too old now":                            {Facts{Target: release(t, "1.0.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.33.0", "n2": "v1.32.1"}}, "warn HostSkew", "too old for it are n2 (1.32.1)"},
		"a kubelet would be newer":                            {Facts{Target: carries(release(t, "1.0.0"), "1.35.9"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.35.0", "n2": "v1.36.1"}}, HostSkew, "the release's API server is 1.35.9, and newer are n2 (1.36.1)"},
		"a kubelet would be too old":                          {Facts{Target: carries(release(t, "1.0.0"), "1.37.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.34.0", "n2": "v1.33.1"}}, HostSkew, "too old for it are n2 (1.33.1)"},
		"a kubelet that is newer is caught up with":           {Facts{Target: carries(release(t, "1.0.0"), "1.37.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n2": "v1.37.0"}}, "", ""},
		"a kind is gone":                                      {Facts{Target: release(t, "1.0.0", widget), Serves: serves("Deployment")}, APIRemoval, "example.com/v1 Widget (f.yaml:1)"},
		"a kind comes along":                                  {Facts{Target: release(t, "1.0.0", widgets, widget), Serves: serves("CustomResourceDefinition")}, "", ""},
		"a kind comes along without its version":              {Facts{Target: release(t, "1.0.0", widgets, older), Serves: serves("CustomResourceDefinition", "Widget")}, APIRemoval, "example.com/v1beta1 Widget (f.yaml:1), whose definition in the release doesn't serve this version"},
		"a kind of an API service that comes along":           {Facts{Target: release(t, "1.0.0", service, widget), Serves: serves("APIService")}, "warn APIRemoval", "example.com/v1 Widget (f.yaml:1)"},
		"a kind of a version without its API service":         {Facts{Target: release(t, "1.0.0", service, older), Serves: serves("APIService")}, APIRemoval, "spec.overrides"},
		"a kind that is gone, of an object that people have": {
			Facts{Target: release(t, "1.0.0", widget), Serves: serves("Deployment"), Unmanaged: map[payload.ObjectID]bool{{Group: "example.com", Kind: "Widget", Name: "w"}: true}}, "", "",
		},
		"a definition that people have brings nothing": {
			Facts{Target: release(t, "1.0.0", widgets, widget), Serves: serves("CustomResourceDefinition"), Unmanaged: map[payload.ObjectID]bool{crd: true}}, APIRemoval, "Widget",
		},
		"a stored version of a definition that people have": {
			Facts{Target: release(t, "1.0.0", widgets), StoredVersions: map[string][]string{"widgets.example.com": {"v1alpha1"}}, Unmanaged: map[payload.ObjectID]bool{crd: true}}, "", "",
		},
		"an object of another set that people have": {
			Facts{Target: release(t, "1.0.0"), Owners: map[payload.ObjectID]string{id("a"): "clusterrelease/site"}, Unmanaged: map[payload.ObjectID]bool{id("a"): true}}, "", "",
		},
		"a stored version stays":                        {Facts{Target: release(t, "1.0.0", widgets), StoredVersions: map[string][]string{"widgets.example.com": {"v1"}}}, "", ""},
		"a stored version goes":                         {Facts{Target: release(t, "1.0.0", widgets), StoredVersions: map[string][]string{"widgets.example.com": {"v1alpha1", "v1"}}}, StoredVersions, "widgets.example.com drops v1alpha1"},
		"an object of another set":                      {Facts{Target: release(t, "1.0.0"), Owners: map[payload.ObjectID]string{id("a"): "clusterrelease/site"}}, OwnedByOther, "ConfigMap a (clusterrelease/site)"},
		"too much would go":                             {Facts{Target: release(t, "1.0.0", widget), Managed: 7, Prunable: six, Prune: true, MaxPruned: 20}, PruneGuard, "6 of 7 objects would be deleted, and 20 % allow 5"},
		"few of a small release may go":                 {Facts{Target: release(t, "1.0.0", widget), Managed: 3, Prunable: six[:2], Prune: true, MaxPruned: 20}, "", ""},
		"none may go":                                   {Facts{Target: release(t, "1.0.0", widget), Managed: 3, Prunable: six[:1], Prune: true}, PruneGuard, "0 % allow 0"},
		"what was found isn't deleted":                  {Facts{Target: release(t, "1.0.0", widget), Managed: 100, Prunable: nil, Prune: true}, "", ""},
		"a fifth of all may go":                         {Facts{Target: release(t, "1.0.0", widget), Managed: 30, Prunable: six, Prune: true, MaxPruned: 20}, "", ""},
		"all would go":                                  {Facts{Target: release(t, "1.0.0"), Managed: 1, Prunable: six[:1], Prune: true, MaxPruned: 100}, PruneGuard, "the release has no objects"},
		"nothing is pruned":                             {Facts{Target: release(t, "1.0.0"), Managed: 1, Prunable: six[:1]}, "", ""},
		"images by digest":                              {Facts{Target: release(t, "1.0.0", pinned)}, "", ""},
		"an image by tag":                               {Facts{Target: release(t, "1.0.0", pinned, unpinned)}, "warn UnpinnedImage", "r/b:latest in batch CronJob b"},
		"an image by tag in an object that people have": {Facts{Target: release(t, "1.0.0", unpinned), Unmanaged: map[payload.ObjectID]bool{{Group: "batch", Kind: "CronJob", Name: "b"}: true}}, "", ""},
		"a version that isn't one is no matter":         {Facts{Target: release(t, "x"), Current: "1.0.0"}, "", ""},
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

// carries has a release say which Kubernetes it brings.
func carries(p *payload.Payload, kubernetes string) *payload.Payload {
	p.Kubernetes = kubernetes
	return p
}

// listing has a release name its component images.
func listing(p *payload.Payload) *payload.Payload {
	p.Images = map[string]string{"api": "r/api@sha256:1"}
	return p
}

// after has a release name its predecessors.
func after(p *payload.Payload, versions ...string) *payload.Payload {
	p.Previous = versions
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
