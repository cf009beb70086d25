// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package reasons describes every reason that a condition, an error, an event or
// a metric of Lockstep may have: its meaning, whether it is retried automatically,
// and what to do. `lockstep explain` prints it, docs/reference/reasons.md is
// generated from it, and a test searches the source for undescribed reasons.
//
// Reasons from conditions of other kinds and from a release's own checks are
// passed through and aren't listed.
package reasons

import (
	"fmt"
	"slices"
	"strings"
)

// Recovery defines whether a reason is retried; its value is a cell of the reference.
type Recovery string

// The values of Recovery.
const (
	// None means that there is nothing to resolve.
	None Recovery = "–"
	// Automatic means that Lockstep retries or rechecks until the cause is gone.
	Automatic Recovery = "yes"
	// Operator means that an operator must change something.
	Operator Recovery = "no"
)

// Reason is one line of the reference.
type Reason struct {
	// Name of the reason in CamelCase, as in conditions.
	Name string
	// Recovery defines whether it is retried.
	Recovery Recovery
	// Meaning is one clause that describes the cause.
	Meaning string
	// Action is one clause that describes what to do; "" for nothing.
	Action string
}

// Group is the reasons of one part of the product.
type Group struct {
	Title string
	// Where lists the conditions and outputs that show the reasons.
	Where   string
	Reasons []Reason
}

// Groups returns the whole reference, in the order of the page.
func Groups() []Group {
	return []Group{trust(), source(), release(), object(), health(), pool(), host(), agent()}
}

// Find returns the description of a reason, from the first group that has it.
func Find(name string) (Reason, bool) {
	for _, g := range Groups() {
		if i := slices.IndexFunc(g.Reasons, func(r Reason) bool { return r.Name == name }); i >= 0 {
			return g.Reasons[i], true
		}
	}
	return Reason{}, false
}

// Page returns docs/reference/reasons.md.
func Page() string {
	var b strings.Builder
	b.WriteString(`# Reasons

The reasons in conditions (column REASON), errors, events and metrics: what each
one means, whether it is retried automatically, and what to do. The message beside
the reason has the details; ` + "`lockstep explain KIND/NAME`" + ` shows both.

*Retried automatically* is "yes" if Lockstep retries or rechecks and continues once
the cause is gone, "no" if an operator must act first, and "–" if nothing is wrong or
nothing can be retried. Terms are defined in the [glossary](glossary.md).

This page is generated from ` + "`config/reasons`" + ` by ` + "`make generate`" + `. A test fails if
the source has a reason that isn't listed. Reasons from a release's own checks and
from conditions of other kinds are passed through and aren't listed.
`)
	for _, g := range Groups() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| reason | meaning | retried automatically | what to do |\n|---|---|---|---|\n", g.Title, g.Where)
		for _, r := range g.Reasons {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Name, r.Meaning, r.Recovery, r.Action)
		}
	}
	return b.String()
}
