// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/config/trust"
)

// Waiver verifies the envelope of a waiver for a release and returns the waiver and
// its signers. waivable are the names of the preconditions that may be waived. A
// key's validity is checked at now, for previously accepted content when the waiver
// was issued. The error is a *trust.Refusal.
func Waiver(doc *trust.Document, t trust.WaiverTarget, raw []byte, waivable []string, now time.Time) (trust.Waiver, []trust.Signer, error) {
	w, payload, err := trust.OpenWaiver(raw)
	if err != nil {
		return w, nil, &trust.Refusal{Cause: trust.WaiverInvalid, Subject: "waiver", Found: "an unreadable envelope", Wanted: "the output of lockstep release waive", Err: err}
	}
	var found []trust.CheckedSignature
	if doc != nil {
		var names []string
		// All keys are tried, so that a refusal can name one of another role or a
		// revoked one.
		if _, names, err = doc.OpenSigned(trust.WaiverType, raw, doc.Keys); err != nil {
			return w, nil, &trust.Refusal{Cause: trust.WaiverInvalid, Subject: "waiver", Err: err}
		}
		material, seen := trust.DigestOf(payload), now
		if t.PreviouslyAccepted {
			seen = w.Issued
		}
		for _, name := range names {
			found = append(found, trust.CheckedSignature{
				Finding: trust.Valid, Key: name, Format: formatDSSE, Material: material, Seen: seen, Detail: name,
			})
		}
		if total := trust.CountSignatures(raw); len(names) == 0 && total > 0 {
			found = append(found, trust.CheckedSignature{Finding: trust.UnknownKey, Format: formatDSSE, Detail: fmt.Sprintf("%d unknown", total)})
		}
	}
	signers, err := trust.EvaluateWaiver(doc, t, w, waivable, found, now)
	return w, signers, err
}
