// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/precondition"
)

func TestWaiversMarkViolationsAndRefusalsNameTheCommand(t *testing.T) {
	hop := precondition.Violation{Name: precondition.GiantHop, Blocking: true, Message: "minor versions are skipped"}
	floor := precondition.Violation{Name: precondition.VersionFloor, Blocking: true, Message: "below the floor"}
	warning := precondition.Violation{Name: precondition.GiantHop, Message: "a warning"}
	expires := time.Date(2026, 12, 4, 0, 0, 0, 0, time.UTC)
	w := trust.Waiver{Checks: []string{precondition.GiantHop, precondition.VersionFloor}, Reason: "tested", Expires: expires}
	granted := waiverResult{waiver: trust.Waiver{Checks: w.Checks[:1], Reason: "tested", Expires: expires}, signers: []trust.Signer{{Name: "admin", Algorithm: "ed25519", Fingerprint: "SHA256:abcd"}}}
	refused := waiverResult{waiver: w, refused: errors.New("Expired: waiver")}
	const command = "lockstep release waive r/a@sha256:1 --cluster prod"
	for name, tc := range map[string]struct {
		violation precondition.Violation
		results   []waiverResult
		waived    bool
		want      string
	}{
		"no waiver":         {hop, nil, false, "minor versions are skipped; to accept the risk: " + command + " --check GiantHop"},
		"a waiver":          {hop, []waiverResult{granted}, true, "minor versions are skipped (waived until 2026-12-04T00:00:00Z by admin (ed25519 …abcd): tested)"},
		"a refused one":     {hop, []waiverResult{refused}, false, "--check GiantHop; refused waivers: spec.waivers[0]: Expired: waiver"},
		"one of two":        {hop, []waiverResult{refused, granted}, true, "(waived until"},
		"of another check":  {floor, []waiverResult{granted}, false, "below the floor"},
		"an unwaivable one": {floor, []waiverResult{refused}, false, "below the floor; refused waivers"},
		"an unreadable one": {hop, []waiverResult{{refused: errors.New("not JSON")}}, false, "refused waivers: spec.waivers[0]: not JSON"},
		"a warning":         {warning, []waiverResult{granted}, false, "a warning"},
	} {
		got := withWaivers([]precondition.Violation{tc.violation}, tc.results, command)[0]
		if got.Waived != tc.waived || !strings.Contains(got.Message, tc.want) {
			t.Errorf("%s: waived %t, %q; want %t, %q", name, got.Waived, got.Message, tc.waived, tc.want)
		}
	}
}
