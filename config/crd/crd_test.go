// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/crd"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

func TestEveryKindHasACRDWithStatusAndPrinterColumns(t *testing.T) {
	crds, err := crd.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, d := range crds {
		kinds = append(kinds, d.Spec.Names.Kind)
		version := d.Spec.Versions[0]
		if version.Subresources == nil || version.Subresources.Status == nil {
			t.Errorf("%s has no status subresource", d.Name)
		}
		if len(version.AdditionalPrinterColumns) == 0 || len(d.Spec.Names.ShortNames) == 0 {
			t.Errorf("%s has no printer columns or no short name", d.Name)
		}
		if !slices.Contains(d.Spec.Names.Categories, "lockstep") {
			t.Errorf("%s isn't in the category lockstep", d.Name)
		}
	}
	want := []string{
		v1alpha1.KindClusterRelease, v1alpha1.KindGitSource, v1alpha1.KindHost,
		v1alpha1.KindNodeOS, v1alpha1.KindTrustPolicy,
	}
	if slices.Sort(kinds); !slices.Equal(kinds, want) {
		t.Errorf("CRDs of %v, want %v", kinds, want)
	}
}

func TestEveryPropertyOfEverySchemaHasADescription(t *testing.T) {
	crds, err := crd.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range crds {
		for _, version := range d.Spec.Versions {
			requireDescriptions(t, d.Spec.Names.Kind, version.Schema.OpenAPIV3Schema)
		}
	}
}

// requireDescriptions reports the properties below path without a description.
// controller-gen writes metadata without one.
func requireDescriptions(t *testing.T, path string, props *apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	for name, property := range props.Properties {
		at := path + "." + name
		if property.Description == "" && !(name == "metadata" && !strings.Contains(path, ".")) {
			t.Errorf("%s has no description", at)
		}
		if len(property.Description) > 300 {
			t.Errorf("the description of %s has %d characters, want at most 300", at, len(property.Description))
		}
		requireDescriptions(t, at, &property)
	}
	if props.Items != nil && props.Items.Schema != nil {
		requireDescriptions(t, path+"[]", props.Items.Schema)
	}
	if props.AdditionalProperties != nil && props.AdditionalProperties.Schema != nil {
		requireDescriptions(t, path+".*", props.AdditionalProperties.Schema)
	}
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// The smallest valid object of each kind; each rejected case changes one field.
const (
	source = `{apiVersion: lockstep.dev/v1alpha1, kind: GitSource, metadata: {name: fleet},
spec: {cluster: prod, url: "ssh://git@git.example.com/fleet.git", ref: {branch: main}, path: clusters/prod}}`
	release = `{apiVersion: lockstep.dev/v1alpha1, kind: ClusterRelease, metadata: {name: platform},
spec: {desired: {version: 1.4.2, image: "registry.example.com/platform/release@` + digest + `"}}}`
	nodes = `{apiVersion: lockstep.dev/v1alpha1, kind: NodeOS, metadata: {name: workers},
spec: {nodeSelector: {matchLabels: {pool: workers}},
os: {version: 2.1.0, image: "registry.example.com/platform/os@` + digest + `"}}}`
	host   = `{apiVersion: lockstep.dev/v1alpha1, kind: Host, metadata: {name: node-13}, spec: {address: "10.0.4.13:50700"}}`
	policy = `{apiVersion: lockstep.dev/v1alpha1, kind: TrustPolicy, metadata: {name: root}, spec: {envelope: "{}"}}`
)

func TestTheAPIServerRejectsInvalidObjects(t *testing.T) {
	client := kindsClient(t)
	for name, tc := range map[string]struct {
		document, old, changed string // old is replaced by changed
		rejection              string // part of the message; empty: admitted
	}{
		"the smallest GitSource":                      {document: source},
		"the smallest ClusterRelease":                 {document: release},
		"the smallest NodeOS":                         {document: nodes},
		"a Host with an address":                      {document: host},
		"the trust policy":                            {document: policy},
		"a source with two refs":                      {source, "branch: main", "branch: main, tag: v1", "exactly one of branch"},
		"a source without a ref":                      {source, "branch: main", "", "exactly one of branch"},
		"a source with a password in its URL":         {source, "git@git", "git:secret@git", "must not contain a password"},
		"a source with a path outside the repository": {source, "clusters/prod", "../prod", "must stay inside"},
		"a source with an unknown scheme":             {source, "ssh://", "ftp://", "should match"},
		"a source with too short an interval":         {source, "cluster:", "interval: 1ms, cluster:", "interval must be between"},
		"a cluster name that isn't a DNS label":       {source, "cluster: prod", "cluster: Prod/1", "should match"},
		"a release by tag instead of digest":          {release, "release@" + digest, "release:1.4.2", "should match"},
		"a release with neither image nor path":       {release, `, image: "registry.example.com/platform/release@` + digest + `"`, "", "exactly one of image and path"},
		"a release with a baseline of OpenShift":      {release, "desired:", "capabilities: {baseline: v4.18}, desired:", ""},
		"a release with an unknown baseline":          {release, "desired:", "capabilities: {baseline: v4.99}, desired:", "supported values"},
		"a pool with an empty selector":               {nodes, "matchLabels: {pool: workers}", "", "must not be empty"},
		"a pool with a selector and all":              {nodes, "nodeSelector:", "all: true, nodeSelector:", "exactly one of nodeSelector"},
		"a pool whose commitDeadline is too short":    {nodes, "os:", `commitDeadline: 5m, gates: {timeout: 15m, soak: 2m}, os:`, "commitDeadline must be longer"},
		"a trust policy of another name":              {policy, "name: root", "name: other", "named root"},
	} {
		t.Run(name, func(t *testing.T) {
			document := strings.Replace(tc.document, tc.old, tc.changed, 1)
			err := create(t, client, document)
			switch {
			case tc.rejection == "" && err != nil:
				t.Errorf("rejected: %v", err)
			case tc.rejection != "" && !apierrors.IsInvalid(err):
				t.Errorf("got error %v, want Invalid with %q", err, tc.rejection)
			case tc.rejection != "" && !strings.Contains(err.Error(), tc.rejection):
				t.Errorf("rejected with %v, want %q", err, tc.rejection)
			}
		})
	}
}

func kindsClient(t *testing.T) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(controlplane.SharedWithKinds(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// create creates the object as a dry run: only validation is tested.
func create(t *testing.T, client dynamic.Interface, document string) error {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
		t.Fatalf("%v in %s", err, document)
	}
	resource := schema.GroupVersionResource{Group: v1alpha1.Group, Version: "v1alpha1", Resource: map[string]string{
		v1alpha1.KindGitSource: "gitsources", v1alpha1.KindClusterRelease: "clusterreleases", v1alpha1.KindNodeOS: "nodeoses",
		v1alpha1.KindHost: "hosts", v1alpha1.KindTrustPolicy: "trustpolicies",
	}[object.GetKind()]}
	_, err := client.Resource(resource).Namespace("default").Create(t.Context(), object,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	return err
}
