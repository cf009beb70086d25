// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOtherSetsFindsEveryManagerOfAnotherSet(t *testing.T) {
	const own = "lockstep:clusterrelease/web"
	for name, tc := range map[string]struct{ managers, owners []string }{
		"no managers":                 {nil, nil},
		"other tools":                 {[]string{"kubectl", "helm"}, nil},
		"the set itself":              {[]string{own}, nil},
		"two sets, one of them twice": {[]string{"kubectl", own, "lockstep:clusterrelease/x", "lockstep:gitsource/y", "lockstep:clusterrelease/x"}, []string{"clusterrelease/x", "gitsource/y"}},
		"a manager without an owner":  {[]string{"lockstep:"}, []string{""}},
	} {
		var entries []metav1.ManagedFieldsEntry
		for _, m := range tc.managers {
			entries = append(entries, metav1.ManagedFieldsEntry{Manager: m})
		}
		if owners := OtherSets(entries, own); !slices.Equal(owners, tc.owners) {
			t.Errorf("%s: %q, want %q", name, owners, tc.owners)
		}
	}
}
