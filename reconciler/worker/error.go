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

// Effect is what an error means for the release.
type Effect string

// The effects, the mildest first.
const (
	// EffectNone is a wait: nothing is wrong yet.
	EffectNone Effect = "None"
	// EffectReport is shown but stops nothing.
	EffectReport Effect = "Report"
	// EffectFailAfterInterval becomes a failure when it lasts.
	EffectFailAfterInterval Effect = "FailAfterInterval"
	// EffectFail is a failure.
	EffectFail Effect = "Fail"
)

// rank orders effects by their weight; the unknown one is a failure.
func (e Effect) rank() int {
	return slices.Index([]Effect{EffectNone, EffectReport, EffectFailAfterInterval, EffectFail}, e) & 3
}

// UpdateError is why an object, or a whole pass, isn't level.
type UpdateError struct {
	// Code is the condition reason, in CamelCase.
	Code string
	// Effect says how bad it is; "" is EffectFail.
	Effect Effect
	// Object is what it is about; zero for a whole pass.
	Object payload.ObjectID
	// Message replaces the text of Nested where it is set.
	Message string
	// Nested is the cause.
	Nested error
	// Retry says that trying again may help without anybody's doing.
	Retry bool
}

// Error names the object first.
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

// Retriable reports whether trying again may help.
func (e *UpdateError) Retriable() bool { return e.Retry }

// ReasonFailed is the reason of errors that carry none.
const ReasonFailed = "ManifestNotApplied"

// asUpdateError gives err a reason, an effect and an object. An error that
// says nothing about retries is retried: passes are bounded by their backoff.
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

// ReasonMultiple is the reason of several unlike errors.
const ReasonMultiple = "MultipleErrors"

// maxSummary bounds how many errors a summary spells out.
const maxSummary = 10

// maxErrors bounds how many errors of a pass are kept.
const maxErrors = 100

// errorList is a bounded list; it is never changed in place.
type errorList struct {
	list []*UpdateError
	// more counts those that found no room.
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

// without returns the list without an object's errors.
func (l errorList) without(id payload.ObjectID) errorList {
	about := func(e *UpdateError) bool { return e.Object == id }
	if slices.ContainsFunc(l.list, about) {
		l.list = slices.DeleteFunc(slices.Clone(l.list), about)
	}
	return l
}

// summarize makes one error of many: waits are left out beside true failures,
// the heaviest and, among equals, the first of the payload comes first,
// because later ones often follow from it. errs is in payload order.
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
	lines, told := alike(sorted)
	if rest := total - told; rest > 0 {
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
		Message: fmt.Sprintf("%d objects are not level: %s", total, strings.Join(lines, "; ")),
		Nested:  errors.Join(nested...),
	}
}

// alike spells out at most maxSummary errors; those that say the same of
// another object are only counted, at the first of them. told is how many
// errors the lines tell of.
func alike(errs []*UpdateError) (lines []string, told int) {
	place := map[string]int{}
	var firsts []string
	var more []int
	for _, e := range errs {
		key := e.Code + " " + e.about()
		i, known := place[key]
		if !known {
			if len(firsts) == maxSummary {
				continue
			}
			i = len(firsts)
			place[key] = i
			firsts, more = append(firsts, e.Error()), append(more, 0)
		} else {
			more[i]++
		}
		told++
	}
	for i, line := range firsts {
		if more[i] > 0 {
			line += fmt.Sprintf(" (and %d alike)", more[i])
		}
		lines = append(lines, line)
	}
	return lines, told
}

// about is the error without the name of its object before it.
func (e *UpdateError) about() string {
	return strings.TrimPrefix(e.Error(), e.Object.String()+": ")
}

// rootFirst sorts by weight and keeps payload order among equals; repeated
// texts and ended contexts are dropped where anything else is left.
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
