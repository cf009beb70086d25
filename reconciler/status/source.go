// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// SourceFacts is the input of Source.
type SourceFacts struct {
	Spec     v1alpha1.GitSourceSpec
	Accepted *v1alpha1.Revision
	// Attempted is the newest fetched revision, "" if none was fetched.
	Attempted string
	Held      HeldBy
	// Err is why the newest revision isn't accepted, with its reason; nil if it
	// is accepted.
	Err       error
	Reason    string
	Retriable bool
	// Insecure are the active insecure options.
	Insecure []string
}

// signatureReasons are the reasons that SourceVerified reports too.
var signatureReasons = []string{
	"Unsigned", "WrongAuthority", "InvalidSignature", "PolicyMissing", "ThresholdNotMet", "InvalidTree", "Equivocation", "Rewound", "TagMoved",
}

// Source returns the conditions of a GitSource.
func Source(f SourceFacts) []Condition {
	return append(sourceSummary(f), sourceVerified(f), insecure(f.Insecure))
}

// sourceSummary returns Ready, Reconciling and Stalled.
func sourceSummary(f SourceFacts) []Condition {
	message, current := "", "no revision accepted yet"
	if f.Accepted != nil {
		message, current = f.Accepted.Revision+" is applied", "still at "+f.Accepted.Revision
	}
	switch {
	case f.Held.Reason != "":
		return held(f.Held, f.Held.Message+"; "+current)
	case f.Err != nil:
		what := "reconciliation failed"
		if f.Attempted != "" {
			what = f.Attempted + " not accepted"
		}
		return kstatus(false, f.Retriable, !f.Retriable, f.Reason, fmt.Sprintf("%s; %s: %s", what, current, f.Err))
	}
	return kstatus(true, false, false, ReasonApplied, message)
}

// sourceVerified returns SourceVerified for the newest revision.
func sourceVerified(f SourceFacts) Condition {
	switch {
	case f.Spec.Verify == nil:
		return False(v1alpha1.ConditionSourceVerified, "Unverified",
			"commits not verified: spec.verify is not set, so anyone who can push controls the cluster; set spec.verify")
	case f.Err != nil && slices.Contains(signatureReasons, f.Reason):
		return False(v1alpha1.ConditionSourceVerified, f.Reason, f.Err.Error())
	case f.Accepted != nil && f.Accepted.Signer != "":
		return True(v1alpha1.ConditionSourceVerified, ReasonVerified, f.Accepted.Revision+" is signed by "+f.Accepted.Signer)
	}
	return Unknown(v1alpha1.ConditionSourceVerified, ReasonPending, "no revision fetched yet")
}

// insecure lists the active insecure options.
func insecure(options []string) Condition {
	if len(options) == 0 {
		return False(v1alpha1.ConditionInsecure, ReasonAsExpected, "no insecure options")
	}
	return True(v1alpha1.ConditionInsecure, "InsecureOptions", strings.Join(options, "; "))
}
