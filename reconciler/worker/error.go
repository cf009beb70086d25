// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-dev/lockstep/payload"
)

// Effect is the effect of an error on the release.
type Effect string

// The effects in ascending severity.
const (
	// EffectNone is a wait, not a problem.
	EffectNone Effect = "None"
	// EffectReport is reported, but doesn't stop the sync.
	EffectReport Effect = "Report"
	// EffectFailAfterInterval becomes a failure if it persists.
	EffectFailAfterInterval Effect = "FailAfterInterval"
	// EffectFail is a failure.
	EffectFail Effect = "Fail"
)

// rank returns the severity; an unknown effect is a failure.
func (e Effect) rank() int {
	return slices.Index([]Effect{EffectNone, EffectReport, EffectFailAfterInterval, EffectFail}, e) & 3
}

// UpdateError is why an object, or a whole sync, failed.
type UpdateError struct {
	// Code is the condition reason, in CamelCase.
	Code string
	// Effect is the severity; "" is EffectFail.
	Effect Effect
	// Object is the affected object, zero for a whole sync.
	Object payload.ObjectID
	// Message replaces the text of Nested if set.
	Message string
	// Nested is the cause.
	Nested error
	// Retry marks a transient error, which is retried automatically.
	Retry bool
}

// Error returns the message, which starts with the object.
func (e *UpdateError) Error() string {
	text := e.Message
	if text == "" && e.Nested != nil {
		text = e.Nested.Error()
	}
	if text == "" {
		text = e.Code
	}
	if e.Object == (payload.ObjectID{}) || strings.Contains(text, e.Object.String()) {
		return text
	}
	return e.Object.String() + ": " + text
}

// Unwrap returns the cause.
func (e *UpdateError) Unwrap() error { return e.Nested }

// Reason returns the condition reason.
func (e *UpdateError) Reason() string { return e.Code }

// Retriable reports whether the error is transient.
func (e *UpdateError) Retriable() bool { return e.Retry }

// ReasonFailed is the reason of errors that carry none.
const ReasonFailed = "ManifestNotApplied"

// asUpdateError adds a reason, an effect and an object to err. Errors without
// Retriable are retried, with backoff.
func asUpdateError(id payload.ObjectID, err error) *UpdateError {
	if known, ok := errors.AsType[*UpdateError](err); ok {
		out := *known
		if out.Object == (payload.ObjectID{}) {
			out.Object = id
		}
		out.Effect = cmp.Or(out.Effect, EffectFail)
		return &out
	}
	out := &UpdateError{Code: ReasonFailed, Effect: EffectFail, Object: id, Nested: err, Retry: true}
	var reasoned interface{ Reason() string }
	if errors.As(err, &reasoned) {
		out.Code = cmp.Or(reasoned.Reason(), ReasonFailed)
	}
	var retriable interface{ Retriable() bool }
	if errors.As(err, &retriable) {
		out.Retry = retriable.Retriable()
	}
	return out
}

// ReasonMultiple is the reason of errors with different reasons.
const ReasonMultiple = "MultipleErrors"

// maxSummary limits the messages in a summary.
const maxSummary = 10

// maxErrors limits the errors kept per sync.
const maxErrors = 100

// errorList is a bounded, immutable list.
type errorList struct {
	list []*UpdateError
	// more counts the dropped errors.
	more int
}

func (l errorList) add(e *UpdateError) errorList {
	if len(l.list) >= maxErrors {
		l.more++
		return l
	}
	l.list = append(slices.Clip(l.list), e)
	return l
}

// without returns the list without the errors of an object.
func (l errorList) without(id payload.ObjectID) errorList {
	about := func(e *UpdateError) bool { return e.Object == id }
	if slices.ContainsFunc(l.list, about) {
		l.list = slices.DeleteFunc(slices.Clone(l.list), about)
	}
	return l
}

// summarize combines errors, which are in payload order. It omits waits if there are
// failures, and lists the most severe error first, then the first of the payload:
// later ones are often its consequence.
func summarize(errs errorList) *UpdateError {
	if len(errs.list) == 0 {
		return nil
	}
	sorted := rootFirst(errs.list)
	first := sorted[0]
	if first.Effect.rank() > EffectNone.rank() {
		sorted = slices.DeleteFunc(sorted, func(e *UpdateError) bool { return e.Effect == EffectNone })
	}
	total := len(sorted) + errs.more
	if total == 1 {
		return first
	}
	lines, counted := summaryLines(sorted)
	if rest := total - counted; rest > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", rest))
	}
	code, nested := first.Code, make([]error, 0, len(sorted))
	retry := false
	for _, e := range sorted {
		if e.Code != code {
			code = ReasonMultiple
		}
		retry = retry || e.Retry
		nested = append(nested, e)
	}
	return &UpdateError{
		Code: code, Effect: first.Effect, Object: first.Object, Retry: retry,
		Message: fmt.Sprintf("%d objects are not ready: %s", total, strings.Join(lines, "; ")),
		Nested:  errors.Join(nested...),
	}
}

// summaryLines returns at most maxSummary messages and the number of errors that
// they cover. Equal messages of several objects share a line.
func summaryLines(errs []*UpdateError) (lines []string, counted int) {
	index := map[string]int{}
	var firsts []string
	var more []int
	for _, e := range errs {
		key := e.Code + " " + e.about()
		i, known := index[key]
		if !known {
			if len(firsts) == maxSummary {
				continue
			}
			i = len(firsts)
			index[key] = i
			firsts, more = append(firsts, e.Error()), append(more, 0)
		} else {
			more[i]++
		}
		counted++
	}
	for i, line := range firsts {
		if more[i] > 0 {
			line += fmt.Sprintf(" (and %d similar)", more[i])
		}
		lines = append(lines, line)
	}
	return lines, counted
}

// about returns the message without the leading object.
func (e *UpdateError) about() string {
	return strings.TrimPrefix(e.Error(), e.Object.String()+": ")
}

// rootFirst sorts by severity, then by payload order. It drops repeated messages and
// canceled contexts unless nothing else is left.
func rootFirst(errs []*UpdateError) []*UpdateError {
	seen := make(map[string]bool, len(errs))
	kept := slices.DeleteFunc(slices.Clone(errs), func(e *UpdateError) bool {
		text := e.Error()
		drop := seen[text] || errors.Is(e.Nested, context.Canceled)
		seen[text] = true
		return drop
	})
	if len(kept) == 0 {
		kept = slices.Clone(errs[:1])
	}
	slices.SortStableFunc(kept, func(a, b *UpdateError) int { return b.Effect.rank() - a.Effect.rank() })
	return kept
}
