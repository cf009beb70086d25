// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestKindsWithoutARowAreThoseOfTheirGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		gk   schema.GroupKind
		want Traits
	}{
		"custom resources have a status contract and count generations": {
			schema.GroupKind{Group: "example.com", Kind: "Database"}, Traits{Stage: Custom, Body: true, Generations: true},
		},
		"add-ons of the community are custom resources": {
			schema.GroupKind{Group: "gateway.networking.x-k8s.io", Kind: "Gateway"}, Traits{Stage: Custom, Body: true, Generations: true},
		},
		"other kinds of Kubernetes need metadata alone": {
			schema.GroupKind{Group: "discovery.k8s.io", Kind: "EndpointSlice"}, Traits{Stage: Workloads},
		},
		"RBAC comes before workloads": {
			schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "Role"}, Traits{Stage: Permissions},
		},
		"classes come after RBAC": {
			schema.GroupKind{Group: "storage.k8s.io", Kind: "CSIDriver"}, Traits{Stage: Configuration},
		},
		"admission comes last, whether generations count or not": {
			schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration"}, Traits{Stage: Admission},
		},
		"autoscalers need metadata alone": {
			schema.GroupKind{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}, Traits{Stage: Workloads},
		},
	} {
		if got := Of(tc.gk); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestKindsThatContainOthersNeedConsentAndComeFirst(t *testing.T) {
	for gk, traits := range table {
		if traits.Contains > 0 && (!traits.Consent || traits.Stage != Foundations) {
			t.Errorf("%s contains other objects, but is pruned without consent or applied in stage %d", gk, traits.Stage)
		}
		if traits.Health != Kstatus && traits.Health != ServiceHealth && !traits.Body {
			t.Errorf("the health of %s is read from its body, which isn't cached", gk)
		}
	}
}
