// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/sources"
)

func TestTheSignerIsReadBackAsItWasWritten(t *testing.T) {
	want := &sources.Signer{Name: "admin-1", Format: "ssh", Fingerprint: "SHA256:abc"}
	if diff := cmp.Diff(want, parseSigner("admin-1 (ssh SHA256:abc)")); diff != "" {
		t.Errorf("signer (-want +got):\n%s", diff)
	}
	if got := parseSigner("nobody"); got != nil {
		t.Errorf("parseSigner of no signer = %+v", got)
	}
}
