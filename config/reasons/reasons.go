// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package reasons says what each reason means that a condition, an error, an
// event or a metric of Lockstep carries: what happened, whether it mends
// itself, and what to do. `lockstep explain` quotes it, the page
// docs/reference/reasons.md is written from it, and a test reads the source
// for reasons that aren't here.
//
// Reasons that come from elsewhere pass through and aren't listed: those of a
// kind's own conditions, and those of checks in a release.
package reasons

import (
	"fmt"
	"slices"
	"strings"
)

// Mends says what it takes for a reason to go away.
type Mends string

// The ways in which a reason goes away.
const (
	// Fine says that nothing is wrong.
	Fine Mends = "–"
	// Itself is tried again, or looked at again, without anybody's doing.
	Itself Mends = "yes"
	// Person needs somebody to change something.
	Person Mends = "no"
)

// Reason is one line of the reference.
type Reason struct {
	// Name as it stands in the condition, in CamelCase.
	Name string
	// Mends says whether it goes away by itself.
	Mends Mends
	// Means says what happened.
	Means string
	// Do says what to do; "" where there is nothing to do.
	Do string
}

// Group is the reasons of one part of the product.
type Group struct {
	Title string
	// Where says which objects show them.
	Where   string
	Reasons []Reason
}

// Groups returns the whole reference, in the order of the page.
func Groups() []Group {
	return []Group{trust(), source(), release(), object(), health(), pool(), host(), agent()}
}

// Find returns what is known of a reason; the first group that has it.
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

What stands in the column REASON of a condition, in errors, events and metrics:
what it means, whether it mends itself, and what to do. The message beside it
names the thing, what was found and what was wanted; ` + "`lockstep explain KIND/NAME`" + `
shows both.

This page is written by ` + "`make generate`" + ` from ` + "`config/reasons`" + `. A test reads the
source for reasons that it lacks. A release's own checks and the conditions of
other kinds bring reasons of their own, which pass through unchanged.
`)
	for _, g := range Groups() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| reason | what it means | mends itself | what to do |\n|---|---|---|---|\n", g.Title, g.Where)
		for _, r := range g.Reasons {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Name, r.Means, r.Mends, r.Do)
		}
	}
	return b.String()
}
