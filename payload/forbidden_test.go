// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"strings"
	"testing"
)

// attempts are objects that a payload may not contain, and whether products under
// selfUpdate may.
var attempts = map[string]struct {
	object     string
	selfUpdate bool
}{
	"a trust policy":          {"{apiVersion: lockstep.dev/v1alpha1, kind: TrustPolicy, metadata: {name: root}}", false},
	"a source":                {"{apiVersion: lockstep.dev/v9, kind: GitSource, metadata: {name: fleet, namespace: lockstep-system}}", false},
	"a host":                  {"{apiVersion: lockstep.dev/v1alpha1, kind: Host, metadata: {name: node-1}}", false},
	"a release":               {"{apiVersion: lockstep.dev/v1alpha1, kind: ClusterRelease, metadata: {name: platform}}", false},
	"a Lockstep secret":       {"{apiVersion: v1, kind: Secret, metadata: {name: fleet-git, namespace: lockstep-system}}", true},
	"the Lockstep namespace":  {"{apiVersion: v1, kind: Namespace, metadata: {name: lockstep-system}}", true},
	"a Lockstep CRD by group": {"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: x}, spec: {group: lockstep.dev}}", true},
	"a Lockstep CRD by name":  {"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: trustpolicies.lockstep.dev}}", true},
	"an aggregated API for the Lockstep group": {"{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1alpha1.lockstep.dev}}", true},
	"a Lockstep role":                          {"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: lockstep-applier}}", true},
	"a Lockstep admission policy":              {"{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: lockstep-trust}}", true},
	"a binding to a Lockstep service account":  {"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: x}, subjects: [{kind: ServiceAccount, name: y, namespace: lockstep-system}]}", true},
	"a binding to a Lockstep group": {
		"{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: x, namespace: y}, subjects: [{kind: Group, name: 'system:serviceaccounts:lockstep-system'}]}", true,
	},
	"a binding to a Lockstep user": {
		"{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: x, namespace: y}, subjects: [{kind: User, name: 'system:serviceaccount:lockstep-system:z'}]}", true,
	},
}

func TestT1APayloadCannotChangeTrust(t *testing.T) {
	for name, tc := range attempts {
		for form, wrap := range map[string]func(string) string{
			"apply": func(s string) string { return s },
			"delete": func(s string) string {
				return strings.Replace(s, "metadata: {", `metadata: {annotations: {lockstep.dev/delete: "true"}, `, 1)
			},
			"CVO's delete": func(s string) string {
				return strings.Replace(s, "metadata: {", `metadata: {annotations: {release.openshift.io/delete: "true"}, `, 1)
			},
			"in a list": func(s string) string {
				return "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: List, items: [" + s + "]}]}"
			},
			"in a list of its kind": func(s string) string {
				return "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBindingList, metadata: {name: x}, items: [" + s + "]}"
			},
			"excluded by the selection": func(s string) string {
				return strings.Replace(s, "metadata: {", `metadata: {annotations: {lockstep.dev/profile: other}, `, 1)
			},
		} {
			t.Run(name+" "+form, func(t *testing.T) {
				files := map[string]string{file: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ok}\n---\n" + wrap(tc.object) + "\n"}
				_, err := loadTree(t, files, LoadOptions{})
				e := refusal(t, err)
				if e.Reason() != ReasonForbidden || e.Document != 2 || e.Line != 5 {
					t.Errorf("rejected with %s: %v", e.Reason(), e)
				}
				_, err = loadTree(t, files, LoadOptions{SelfUpdate: true})
				if allowed := err == nil || refusal(t, err).Reason() != ReasonForbidden; allowed != tc.selfUpdate {
					t.Errorf("under selfUpdate: %v", err)
				}
			})
		}
	}
}

func TestT1AllowsNodeOSAndOtherNames(t *testing.T) {
	p, err := loadTree(t, map[string]string{file: `
{apiVersion: lockstep.dev/v1alpha1, kind: NodeOS, metadata: {name: workers, namespace: lockstep-system, annotations: {lockstep.dev/wait: started}}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: gridlockstep-x}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: x}, subjects: [{kind: ServiceAccount, name: y, namespace: web}]}
`}, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if m := p.Manifests[0]; !m.RollbackFirst || m.Wait != WaitStarted {
		t.Errorf("NodeOS: rollback first %v, wait %q", m.RollbackFirst, m.Wait)
	}
}
