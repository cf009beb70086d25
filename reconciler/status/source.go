// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// SourceFacts is everything that a GitSource's conditions are made from.
type SourceFacts struct {
	Spec     v1alpha1.GitSourceSpec
	Accepted *v1alpha1.Revision
	// Attempted is the newest revision seen, "" if none was reached.
	Attempted string
	Held      HeldBy
	// Err is why the newest isn't accepted, with its reason; nil if it is.
	Err       error
	Reason    string
	Retriable bool
	// Insecure are the development doors that are open.
	Insecure []string
}

// unverified are the reasons that speak of a revision's signature.
var unverified = []string{
	"Unsigned", "WrongAuthority", "InvalidSignature", "PolicyMissing", "ThresholdNotMet", "InvalidTree", "Equivocation", "Rewound", "TagMoved",
}

// Source decides the conditions of a GitSource.
func Source(f SourceFacts) []Condition {
	ready := Condition{v1alpha1.ConditionReady, metav1.ConditionTrue, ReasonApplied, ""}
	if f.Accepted != nil {
		ready.Message = f.Accepted.Revision + " is applied"
	}
	goesOn := "nothing was accepted yet"
	if f.Accepted != nil {
		goesOn = f.Accepted.Revision + " goes on"
	}
	stalled := Condition{v1alpha1.ConditionStalled, metav1.ConditionFalse, ReasonAsExpected, "nothing stands in the way"}
	reconciling := Condition{v1alpha1.ConditionReconciling, metav1.ConditionFalse, ReasonAsExpected, ready.Message}
	switch {
	case f.Held.Reason != "":
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, f.Held.Reason, f.Held.Message+"; "+goesOn
		stalled.Status, stalled.Reason, stalled.Message = Bool(!f.Held.Transient), f.Held.Reason, ready.Message
		reconciling.Status, reconciling.Reason, reconciling.Message = Bool(f.Held.Transient), f.Held.Reason, ready.Message
	case f.Err != nil:
		what := f.Attempted
		if what == "" {
			what = "the source"
		}
		ready.Status, ready.Reason = metav1.ConditionFalse, f.Reason
		ready.Message = fmt.Sprintf("%s isn't accepted, %s: %s", what, goesOn, f.Err)
		if f.Retriable {
			reconciling.Status, reconciling.Reason, reconciling.Message = metav1.ConditionTrue, f.Reason, ready.Message
		} else {
			stalled.Status, stalled.Reason, stalled.Message = metav1.ConditionTrue, f.Reason, ready.Message
		}
	}
	return []Condition{ready, stalled, reconciling, sourceVerified(f), insecure(f.Insecure)}
}

// sourceVerified says whether the newest revision's signature was good.
func sourceVerified(f SourceFacts) Condition {
	c := Condition{v1alpha1.ConditionSourceVerified, metav1.ConditionUnknown, ReasonPending, "no revision was reached yet"}
	switch {
	case f.Spec.Verify == nil:
		c.Status, c.Reason = metav1.ConditionFalse, "Unverified"
		c.Message = "spec.verify is not set: whoever can push declares the cluster, and no payload path is accepted"
	case f.Err != nil && slices.Contains(unverified, f.Reason):
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, f.Reason, f.Err.Error()
	case f.Accepted != nil && f.Accepted.Signer != "":
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonVerified, f.Accepted.Revision+" is signed by "+f.Accepted.Signer
	}
	return c
}

// insecure lists the doors that are open.
func insecure(doors []string) Condition {
	if len(doors) == 0 {
		return Condition{v1alpha1.ConditionInsecure, metav1.ConditionFalse, ReasonAsExpected, "no door for development is open"}
	}
	return Condition{v1alpha1.ConditionInsecure, metav1.ConditionTrue, "InsecureOptions", strings.Join(doors, "; ")}
}
