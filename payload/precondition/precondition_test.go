// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package precondition

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/payload"
)

// release returns a payload with the given objects in YAML.
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
		"the first install":                                             {Facts{Target: release(t, "1.0.0")}, "", ""},
		"the next patch":                                                {Facts{Target: release(t, "1.4.3"), Current: "1.4.2"}, "", ""},
		"the next minor":                                                {Facts{Target: release(t, "1.5.0"), Current: "1.4.2"}, "", ""},
		"a skipped minor":                                               {Facts{Target: withHop(release(t, "1.6.0"), 1), Current: "1.4.2"}, GiantHop, "update to 1.5 first"},
		"another major version":                                         {Facts{Target: withHop(release(t, "2.0.0"), 1), Current: "1.4.2"}, GiantHop, "major"},
		"below the release's minimum":                                   {Facts{Target: withMinimum(release(t, "1.5.0"), "1.4.3"), Current: "1.4.2"}, GiantHop, "requires at least 1.4.3"},
		"a rollback to the previous version":                            {Facts{Target: release(t, "1.4.1"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1"}}, "", ""},
		"a rollback to an earlier version":                              {Facts{Target: release(t, "1.4.0"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1", "1.4.0"}}, Rollback, "spec.rollback.to: 1.4.0"},
		"a rollback from a version that never completed":                {Facts{Target: release(t, "1.4.1"), Current: "1.4.2", Completed: []string{"1.4.1"}}, "", ""},
		"a rollback across a minor version without Kubernetes":          {Facts{Target: release(t, "1.3.9"), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}}, "", ""},
		"a rollback across a minor version":                             {Facts{Target: withImages(release(t, "1.3.9")), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}}, Rollback, "require spec.rollback.to: 1.3.9"},
		"a rollback across a major version":                             {Facts{Target: withImages(release(t, "0.4.2")), Current: "1.4.2", Completed: []string{"1.4.2", "0.4.2"}}, Rollback, "another minor version than 1.4.2"},
		"a permitted rollback across a minor version":                   {Facts{Target: withImages(release(t, "1.3.9")), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}, RollbackTo: "1.3.9"}, "", ""},
		"a rollback across a minor version with the same Kubernetes":    {Facts{Target: withKubernetes(release(t, "1.3.9"), "1.36.1"), Current: "1.4.2", Completed: []string{"1.4.2", "1.3.9"}, APIServer: "v1.36.3"}, "", ""},
		"a rollback across a Kubernetes minor version":                  {Facts{Target: withKubernetes(release(t, "1.4.1"), "1.35.9"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1"}, APIServer: "v1.36.3"}, Rollback, "1.4.1 contains Kubernetes 1.35.9, and the API server is 1.36.3"},
		"a rollback during an update":                                   {Facts{Target: release(t, "1.4.2"), Current: "1.4.2", Applying: "1.5.0", APIServer: "v1.37.0"}, "", ""},
		"a rollback during an update after the API server was updated":  {Facts{Target: withKubernetes(release(t, "1.4.2"), "1.36.3"), Current: "1.4.2", Applying: "1.5.0", APIServer: "v1.37.0"}, Rollback, "it contains Kubernetes 1.36.3, and the update to 1.5.0 already installed 1.37.0"},
		"a rollback during an update before the API server was updated": {Facts{Target: withKubernetes(release(t, "1.4.2"), "1.36.3"), Current: "1.4.2", Applying: "1.5.0", APIServer: "v1.36.3"}, "", ""},
		"a permitted rollback during an update":                         {Facts{Target: withKubernetes(release(t, "1.4.2"), "1.36.3"), Current: "1.4.2", Applying: "1.5.0", APIServer: "v1.37.0", RollbackTo: "1.4.2"}, "", ""},
		"an update after another tool updated the API server":           {Facts{Target: withKubernetes(release(t, "1.4.3"), "1.36.3"), Current: "1.4.2", Applying: "1.4.2", APIServer: "v1.37.0"}, "", ""},
		"a permitted rollback":                                          {Facts{Target: release(t, "1.2.0"), Current: "1.4.2", RollbackTo: "1.2.0"}, "", ""},
		"an update from a listed version":                               {Facts{Target: withPrevious(release(t, "1.4.3"), "1.4.1", "1.4.2"), Current: "1.4.2"}, "", ""},
		"an update from an unlisted version":                            {Facts{Target: withPrevious(release(t, "1.4.3"), "1.4.1"), Current: "1.4.2"}, "warn RecommendedUpdate", "update from 1.4.2 to 1.4.3 not recommended: the release lists updates from 1.4.1"},
		"a rollback from an unlisted version":                           {Facts{Target: withPrevious(release(t, "1.4.1"), "1.4.0"), Current: "1.4.2", Completed: []string{"1.4.2", "1.4.1"}}, "", ""},
		"a blocker at a minor update":                                   {Facts{Target: release(t, "1.5.0"), Current: "1.4.2", Blockers: []Blocker{{"etcd", "Degraded", "a member is down"}}}, Upgradeable, "etcd (Degraded: a member is down)"},
		"a blocker at a patch":                                          {Facts{Target: release(t, "1.4.3"), Current: "1.4.2", Blockers: []Blocker{{"etcd", "Degraded", "x"}}}, "warn Upgradeable", ""},
		"an old kubelet at a minor update":                              {Facts{Target: release(t, "1.5.0"), Current: "1.4.2", APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.34.0", "n2": "v1.33.4"}}, Upgradeable, "1.36.3: n2 (1.33.4)"},
		"an old kubelet at a patch":                                     {Facts{Target: release(t, "1.4.3"), Current: "1.4.2", APIServer: "v1.36.3", Kubelets: map[string]string{"n2": "v1.33.4"}}, "", ""},
		"an old kubelet that the target supports":                       {Facts{Target: withKubernetes(release(t, "1.5.0"), "1.36.4"), Current: "1.4.2", APIServer: "v1.36.3", Kubelets: map[string]string{"n2": "v1.33.4"}}, "", ""},
		"below the floor":                                               {Facts{Target: release(t, "1.4.2"), Floor: "1.5.0"}, VersionFloor, "floor for platform is 1.5.0"},
		"at the floor":                                                  {Facts{Target: release(t, "1.5.0"), Floor: "1.5.0"}, "", ""},
		"a kubelet newer than the current API server":                   {Facts{Target: release(t, "1.0.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.36.9", "n2": "v1.37.0"}}, "warn HostSkew", "newer than the API server (1.36.3): n2 (1.37.0)"},
		"a kubelet too old for the current API server":                  {Facts{Target: release(t, "1.0.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.33.0", "n2": "v1.32.1"}}, "warn HostSkew", "older than the API server (1.36.3): n2 (1.32.1)"},
		"a kubelet newer than the target":                               {Facts{Target: withKubernetes(release(t, "1.0.0"), "1.35.9"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.35.0", "n2": "v1.36.1"}}, HostSkew, "newer than the release's API server (1.35.9): n2 (1.36.1)"},
		"a kubelet too old for the target":                              {Facts{Target: withKubernetes(release(t, "1.0.0"), "1.37.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n1": "v1.34.0", "n2": "v1.33.1"}}, HostSkew, "older than the release's API server (1.37.0): n2 (1.33.1)"},
		"a kubelet newer than the API server, as new as the target":     {Facts{Target: withKubernetes(release(t, "1.0.0"), "1.37.0"), APIServer: "v1.36.3", Kubelets: map[string]string{"n2": "v1.37.0"}}, "", ""},
		"a kind that isn't served":                                      {Facts{Target: release(t, "1.0.0", widget), Serves: serves("Deployment")}, APIRemoval, "example.com/v1 Widget (f.yaml:1)"},
		"a kind with its CRD":                                           {Facts{Target: release(t, "1.0.0", widgets, widget), Serves: serves("CustomResourceDefinition")}, "", ""},
		"a kind whose CRD lacks the version":                            {Facts{Target: release(t, "1.0.0", widgets, older), Serves: serves("CustomResourceDefinition", "Widget")}, APIRemoval, "example.com/v1beta1 Widget (f.yaml:1) (the CRD in the release doesn't serve this version)"},
		"a kind with its API service":                                   {Facts{Target: release(t, "1.0.0", service, widget), Serves: serves("APIService")}, "warn APIRemoval", "example.com/v1 Widget (f.yaml:1)"},
		"a kind whose API service has another version":                  {Facts{Target: release(t, "1.0.0", service, older), Serves: serves("APIService")}, APIRemoval, "spec.overrides"},
		"an unmanaged object of a kind that isn't served": {
			Facts{Target: release(t, "1.0.0", widget), Serves: serves("Deployment"), Unmanaged: map[payload.ObjectID]bool{{Group: "example.com", Kind: "Widget", Name: "w"}: true}}, "", "",
		},
		"an unmanaged CRD provides nothing": {
			Facts{Target: release(t, "1.0.0", widgets, widget), Serves: serves("CustomResourceDefinition"), Unmanaged: map[payload.ObjectID]bool{crd: true}}, APIRemoval, "Widget",
		},
		"a stored version of an unmanaged CRD": {
			Facts{Target: release(t, "1.0.0", widgets), StoredVersions: map[string][]string{"widgets.example.com": {"v1alpha1"}}, Unmanaged: map[payload.ObjectID]bool{crd: true}}, "", "",
		},
		"an unmanaged object of another release": {
			Facts{Target: release(t, "1.0.0"), Owners: map[payload.ObjectID]string{id("a"): "clusterrelease/site"}, Unmanaged: map[payload.ObjectID]bool{id("a"): true}}, "", "",
		},
		"a stored version that remains":               {Facts{Target: release(t, "1.0.0", widgets), StoredVersions: map[string][]string{"widgets.example.com": {"v1"}}}, "", ""},
		"a stored version that is dropped":            {Facts{Target: release(t, "1.0.0", widgets), StoredVersions: map[string][]string{"widgets.example.com": {"v1alpha1", "v1"}}}, StoredVersions, "widgets.example.com drops v1alpha1"},
		"an object of another release":                {Facts{Target: release(t, "1.0.0"), Owners: map[payload.ObjectID]string{id("a"): "clusterrelease/site"}}, OwnedByOther, "ConfigMap a (clusterrelease/site)"},
		"a prune above the limit":                     {Facts{Target: release(t, "1.0.0", widget), Managed: 7, Prunable: six, Prune: true, MaxPruned: 20}, PruneGuard, "prune of 6 of 7 objects not allowed: the limit is 5 (20%)"},
		"a prune of a few objects of a small release": {Facts{Target: release(t, "1.0.0", widget), Managed: 3, Prunable: six[:2], Prune: true, MaxPruned: 20}, "", ""},
		"a prune with a limit of 0 %":                 {Facts{Target: release(t, "1.0.0", widget), Managed: 3, Prunable: six[:1], Prune: true}, PruneGuard, "the limit is 0 (0%)"},
		"a prune of adopted objects":                  {Facts{Target: release(t, "1.0.0", widget), Managed: 100, Prunable: nil, Prune: true}, "", ""},
		"a prune at the limit":                        {Facts{Target: release(t, "1.0.0", widget), Managed: 30, Prunable: six, Prune: true, MaxPruned: 20}, "", ""},
		"a prune of everything":                       {Facts{Target: release(t, "1.0.0"), Managed: 1, Prunable: six[:1], Prune: true, MaxPruned: 100}, PruneGuard, "the release has no objects"},
		"no prune":                                    {Facts{Target: release(t, "1.0.0"), Managed: 1, Prunable: six[:1]}, "", ""},
		"images by digest":                            {Facts{Target: release(t, "1.0.0", pinned)}, "", ""},
		"an image by tag":                             {Facts{Target: release(t, "1.0.0", pinned, unpinned)}, "warn UnpinnedImage", "r/b:latest in batch CronJob b"},
		"an image by tag in an unmanaged object":      {Facts{Target: release(t, "1.0.0", unpinned), Unmanaged: map[payload.ObjectID]bool{{Group: "batch", Kind: "CronJob", Name: "b"}: true}}, "", ""},
		"a deletion in progress at a minor update":    {Facts{Target: release(t, "1.5.0"), Current: "1.4.2", Deleting: "objects still being deleted: 1"}, "warn Upgradeable", "still being deleted"},
		"an order that can't work":                    {Facts{Target: release(t, "1.0.0"), Order: []string{"Deployment a mounts Secret b"}}, ManifestOrder, "can't work: Deployment a mounts Secret b"},
		"many orders that can't work":                 {Facts{Target: release(t, "1.0.0"), Order: strings.Split("abcdefgh", "")}, ManifestOrder, "a; b; c; d; e; and 3 more"},
		"an invalid version":                          {Facts{Target: release(t, "x"), Current: "1.0.0"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, text := "", ""
			for _, v := range Evaluate(&tc.facts) {
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

func withMinimum(p *payload.Payload, version string) *payload.Payload {
	p.MinimumVersion = version
	return p
}

// withKubernetes sets the Kubernetes version of a release.
func withKubernetes(p *payload.Payload, kubernetes string) *payload.Payload {
	p.Kubernetes = kubernetes
	return p
}

// withImages sets the component images of a release.
func withImages(p *payload.Payload) *payload.Payload {
	p.Images = map[string]string{"api": "r/api@sha256:1"}
	return p
}

// withPrevious sets the previous versions of a release.
func withPrevious(p *payload.Payload, versions ...string) *payload.Payload {
	p.Previous = versions
	return p
}

// withHop sets the number of minor versions that an update may advance.
func withHop(p *payload.Payload, n int) *payload.Payload {
	p.MaxMinorHop = &n
	return p
}

func TestUnknownFactsCauseNoViolation(t *testing.T) {
	if got := Evaluate(&Facts{}); got != nil {
		t.Errorf("violations without facts: %v", got)
	}
}
