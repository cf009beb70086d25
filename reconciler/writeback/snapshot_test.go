// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/sources"
)

func TestTheReportTakesRevisionAndSignerFromThePersistedState(t *testing.T) {
	revision := sources.Revision{Ref: "main", Hash: "9f2c1ab000000000000000000000000000000000", Tree: sum}
	source := &v1alpha1.GitSource{}
	source.Name = "fleet"
	source.Status.AcceptedRevision = &v1alpha1.Revision{Revision: revision.String(), Tree: sum, Signer: "admin (two) (ssh SHA256:Xk3Q)", Time: metav1.NewTime(now)}
	signer := &sources.Signer{Name: "admin (two)", Format: "ssh", Fingerprint: "SHA256:Xk3Q"}
	for name, tc := range map[string]struct {
		accepted Accepted
		want     Source
	}{
		"persisted":     {Accepted{Revision: revision, Time: now, Signer: signer}, Source{Name: "fleet", Revision: revision, Accepted: now, Signer: signer}},
		"not persisted": {Accepted{}, Source{Name: "fleet", Revision: revision, Accepted: now}},
	} {
		if diff := cmp.Diff(tc.want, reportSource(source, tc.accepted)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestNewRejectsAnIncompleteConfig(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an empty Config was accepted")
	}
}
