// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/payload"
)

func TestAwkwardPartsOfRealProjectsAreBuilt(t *testing.T) {
	for project, tc := range map[string]struct {
		// objects of 1.0.0, and what 1.0.1 adds, without generated suffixes.
		objects, added []string
		warnings       []string
		ignored        []string
	}{
		"gateway": {
			objects: []string{
				"rbac.authorization.k8s.io ClusterRole gateway", "rbac.authorization.k8s.io ClusterRoleBinding gateway", "Service gateway/gateway", "networking.k8s.io IngressClass gateway",
				"apps Deployment gateway/gateway", "ConfigMap gateway/settings", "ConfigMap gateway/tcp-services", "Namespace gateway", "ServiceAccount gateway/gateway",
			},
			added:    []string{"Secret gateway/token"},
			warnings: []string{"gateway/0-rbac.yaml:9 ", "gateway/0-rbac.yaml:17 ", "gateway/1-service.yaml:13 "},
			ignored:  []string{"gateway/NOTES.txt", "gateway/values.yaml"},
		},
		"certificates": {
			objects: []string{
				"certificates.example.com Issuer certificates/self-signed", "certificates.example.com ClusterIssuer self-signed",
				"admissionregistration.k8s.io ValidatingWebhookConfiguration certificates-webhook", "Service certificates/webhook", "apps Deployment certificates/webhook",
				"Secret certificates/webhook-certificate", "ServiceAccount certificates/webhook", "Namespace certificates",
				"apiextensions.k8s.io CustomResourceDefinition issuers.certificates.example.com", "apiextensions.k8s.io CustomResourceDefinition clusterissuers.certificates.example.com",
			},
			added:    []string{"certificates.example.com Certificate certificates/webhook", "apiextensions.k8s.io CustomResourceDefinition certificates.certificates.example.com"},
			warnings: []string{"certificates/a-issuer.yaml:8 "},
		},
		"metrics": {
			objects: []string{
				"Namespace metrics", "ServiceAccount metrics/metrics", "rbac.authorization.k8s.io Role metrics/reader", "rbac.authorization.k8s.io Role metrics/writer",
				"Service metrics/metrics", "apps Deployment metrics/metrics", "policy PodDisruptionBudget metrics/metrics", "apiregistration.k8s.io APIService v1beta1.custom.metrics.example.com",
			},
			added:    []string{"ConfigMap metrics/settings-"},
			warnings: []string{"metrics/kustomization.yaml:2 "},
		},
	} {
		t.Run(project, func(t *testing.T) {
			for version, want := range map[string][]string{"1.0.0": tc.objects, "1.0.1": append(slices.Clone(tc.objects), tc.added...)} {
				r, err := Build(filepath.Join("testdata", "projects", project, version), "")
				if err != nil {
					t.Fatal(err)
				}
				got := objectsOf(t, r)
				for i, id := range got {
					if name, _, generated := strings.Cut(id, "settings-"); generated {
						got[i] = name + "settings-"
					}
				}
				slices.Sort(got)
				slices.Sort(want)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: objects (-want +got):\n%s", version, diff)
				}
				if len(r.Warnings()) != len(tc.warnings) {
					t.Errorf("%s: warnings are %q, want %d", version, r.Warnings(), len(tc.warnings))
				}
				for i, w := range r.Warnings() {
					if i < len(tc.warnings) && !strings.HasPrefix(w, tc.warnings[i]) {
						t.Errorf("%s: warning %q doesn't start with %q", version, w, tc.warnings[i])
					}
				}
				if diff := cmp.Diff(tc.ignored, r.Ignored()); diff != "" {
					t.Errorf("%s: ignored (-want +got):\n%s", version, diff)
				}
				files, err := r.Tree()
				if err != nil {
					t.Fatal(err)
				}
				p, err := payload.Check(files)
				if err != nil || len(p.ScopeErrors()) > 0 || len(p.Warnings) > 0 {
					t.Errorf("%s: the built release: %v, warnings %q, scopes %v", version, err, p.Warnings, p.ScopeErrors())
				}
			}
		})
	}
}
