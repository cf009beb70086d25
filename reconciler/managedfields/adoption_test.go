// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAdoptionNamesTheFieldsOfOtherManagers(t *testing.T) {
	ours := entryOf(testManager, "Apply", "", `{"f:data":{"f:a":{},"f:b":{}}}`)
	for name, tc := range map[string]struct {
		before, after []metav1.ManagedFieldsEntry
		want          string
	}{
		"nobody else": {nil, nil, ""},
		"a conflict and leftovers": {
			[]metav1.ManagedFieldsEntry{entryOf("installer", "Update", "", `{"f:data":{"f:a":{},"f:stale":{}},"f:metadata":{"f:labels":{"f:team":{}}}}`)},
			[]metav1.ManagedFieldsEntry{entryOf("installer", "Update", "", `{"f:data":{"f:stale":{}},"f:metadata":{"f:labels":{"f:team":{}}}}`)},
			"took .data.a from installer; kept .data.stale, .metadata.labels.team of installer",
		},
		"a shared field": {
			[]metav1.ManagedFieldsEntry{entryOf("installer", "Update", "", `{"f:data":{"f:a":{}}}`)},
			[]metav1.ManagedFieldsEntry{entryOf("installer", "Update", "", `{"f:data":{"f:a":{}}}`)},
			"",
		},
		"a manager that is taken over, a status and Kubernetes": {
			[]metav1.ManagedFieldsEntry{
				entryOf("kubectl-edit", "Update", "", `{"f:data":{"f:a":{}}}`), entryOf("operator", "Update", "status", `{"f:status":{"f:b":{}}}`),
				entryOf("kube-controller-manager", "Update", "", `{"f:metadata":{"f:annotations":{"f:revision":{}}}}`),
			},
			[]metav1.ManagedFieldsEntry{
				entryOf("operator", "Update", "status", `{"f:status":{"f:b":{}}}`),
				entryOf("kube-controller-manager", "Update", "", `{"f:metadata":{"f:annotations":{"f:revision":{}}}}`),
			},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := AdoptionOf(tc.before, append([]metav1.ManagedFieldsEntry{ours}, tc.after...), testManager, Adoptable(nil, "")).String()
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestAdoptionIsBounded(t *testing.T) {
	var fields []string
	for i := range 100 {
		fields = append(fields, fmt.Sprintf(`"f:k%d":{}`, i))
	}
	var entries []metav1.ManagedFieldsEntry
	for i := range 10 {
		entries = append(entries, entryOf(fmt.Sprintf("tool%d", i), "Update", "", `{"f:data":{`+strings.Join(fields, ",")+`}}`))
	}
	got := AdoptionOf(entries, entries, testManager, None).String()
	if n := strings.Count(got, ".data."); n != maxManagers*maxListed {
		t.Errorf("%d fields are named, want %d", n, maxManagers*maxListed)
	}
}
