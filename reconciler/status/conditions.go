// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package status folds what workers, sources and rollouts report into what
// people read: conditions, progress and history. It is pure: the same facts
// and the same previous status give the same result, times are arguments, and
// nothing here decides what the reconciler does next.
package status

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// maxMessage bounds a condition's message; the API allows 32,768 bytes, people
// read less.
const maxMessage = 1024

// The limits that the schema sets.
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

// Condition is one condition before it has a time.
type Condition struct {
	Type    string
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// Bool returns True or False.
func Bool(b bool) metav1.ConditionStatus {
	if b {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// Fold sets the wanted conditions over the previous ones, keeps the transition
// time of those whose status didn't change, and removes the ones listed in
// gone. The previous slice isn't changed.
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

// oneLine joins the lines of a message: an error that has one problem a line
// stays readable in a condition.
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
