// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOtherSetFindsEveryManagerOfAnotherSet(t *testing.T) {
	const own, from = "lockstep:clusterrelease/web", "lockstep:clusterrelease/old"
	for name, tc := range map[string]struct {
		managers []string
		owner    string
		found    bool
	}{
		"no managers":                       {nil, "", false},
		"other tools":                       {[]string{"kubectl", "helm"}, "", false},
		"the set itself, and the one given": {[]string{own, from}, "", false},
		"another set":                       {[]string{"kubectl", own, "lockstep:clusterrelease/x"}, "clusterrelease/x", true},
		"a manager without an owner":        {[]string{"lockstep:", "lockstep:clusterrelease/x"}, "", true},
	} {
		var entries []metav1.ManagedFieldsEntry
		for _, m := range tc.managers {
			entries = append(entries, metav1.ManagedFieldsEntry{Manager: m})
		}
		if owner, found := OtherSet(entries, own, from); owner != tc.owner || found != tc.found {
			t.Errorf("%s: %q, %t, want %q, %t", name, owner, found, tc.owner, tc.found)
		}
	}
}
