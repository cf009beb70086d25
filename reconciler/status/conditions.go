// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package status converts the state of workers and sources into the status of
// the declared objects: conditions, progress and history. It is pure: the same
// facts and the same previous status give the same result.
package status

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// maxMessage bounds a condition's message in bytes; the API allows 32,768.
const maxMessage = 1024

// Limits of the schema.
const (
	maxBlocking = 20
	maxHistory  = 100
	maxEvidence = 16
	maxLine     = 256
	maxWarnings = 16
	maxWarning  = 512
	maxRisks    = 1024
	maxRevision = 512

	maxCapabilities = 256
	maxCapability   = 128
)

// Condition is a condition without times and generation. True, False, Unknown
// and If build one; Fold makes a metav1.Condition of it.
type Condition struct {
	Type    string
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// True returns a condition with status True.
func True(typ, reason, message string) Condition {
	return Condition{Type: typ, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

// False returns a condition with status False.
func False(typ, reason, message string) Condition {
	return Condition{Type: typ, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// Unknown returns a condition with status Unknown.
func Unknown(typ, reason, message string) Condition {
	return Condition{Type: typ, Status: metav1.ConditionUnknown, Reason: reason, Message: message}
}

// If returns a condition with status True if ok, else False.
func If(ok bool, typ, reason, message string) Condition {
	if ok {
		return True(typ, reason, message)
	}
	return False(typ, reason, message)
}

// Fold returns prev with the conditions of want set and those of gone removed.
// The transition time changes only with the status. prev isn't changed.
func Fold(prev []metav1.Condition, generation int64, now metav1.Time, want []Condition, gone ...string) []metav1.Condition {
	out := slices.Clone(prev)
	for _, c := range want {
		meta.SetStatusCondition(&out, metav1.Condition{
			Type:               c.Type,
			Status:             c.Status,
			Reason:             c.Reason,
			Message:            sanitize.Clip(oneLine(c.Message), maxMessage),
			ObservedGeneration: generation,
			LastTransitionTime: now,
		})
	}
	for _, name := range gone {
		meta.RemoveStatusCondition(&out, name)
	}
	return out
}

// oneLine joins the lines of a message by "; ".
func oneLine(message string) string {
	if !strings.Contains(message, "\n") {
		return message
	}
	var parts []string
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.Join(parts, "; ")
}

// Bool returns True or False.
func Bool(b bool) metav1.ConditionStatus {
	if b {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// clipAll cuts a list and each of its lines to the schema's limits.
func clipAll(lines []string, n, bytes int) []string {
	if len(lines) > n {
		lines = lines[:n]
	}
	out := make([]string, 0, len(lines))
	for _, line := range lines {
		out = append(out, sanitize.Clip(line, bytes))
	}
	return out
}
