// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"strings"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// Reasons that an Error carries into a condition.
const (
	ReasonInvalid       = "InvalidDesiredState" // documents that can't be taken as they are
	ReasonPathNotFound  = "PathNotFound"        // spec.path isn't in the source
	ReasonEmpty         = "EmptyDesiredState"   // spec.path declares nothing: never taken for "delete all"
	ReasonSelfReference = "SelfReference"       // a source would change how it is read, or add one that the root doesn't allow
	ReasonLimitExceeded = "LimitExceeded"       // more documents, bytes or depth than allowed
)

// maxProblems is how many problems one error lists.
const maxProblems = 20

// Problem is one thing that is wrong, and where.
type Problem struct {
	// File inside the source; "" if it isn't known.
	File string
	// Line in File, counted from 1; 0 if it isn't known.
	Line int
	// Object as "ClusterRelease/platform"; "" if it isn't known.
	Object string
	// Message says what was found, what is wanted, and how to mend it.
	Message string

	reason string
}

// String returns "file:line: object: message".
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(sanitize.Line(p.File))
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	if p.Object != "" {
		b.WriteString(sanitize.Line(p.Object) + ": ")
	}
	b.WriteString(sanitize.Clip(p.Message, 512))
	return b.String()
}

// Error is why a desired state was refused: all that is wrong, bounded.
type Error struct {
	Problems []Problem
	// Cut is how many more problems there are.
	Cut int
}

// Error implements error; one problem a line.
func (e *Error) Error() string {
	lines := make([]string, 0, len(e.Problems)+1)
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	if e.Cut > 0 {
		lines = append(lines, fmt.Sprintf("and %d more problems", e.Cut))
	}
	return strings.Join(lines, "\n")
}

// Reason returns the reason for a condition: the first that isn't
// InvalidDesiredState, so that an attempt at a wall is never hidden.
func (e *Error) Reason() string {
	for _, p := range e.Problems {
		if p.reason != "" && p.reason != ReasonInvalid {
			return p.reason
		}
	}
	return ReasonInvalid
}

// problems collects; it's how every step reports.
type problems struct {
	list []Problem
	cut  int
}

func (p *problems) add(x Problem) {
	if len(p.list) == maxProblems {
		p.cut++
		return
	}
	p.list = append(p.list, x)
}

func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	return &Error{Problems: p.list, Cut: p.cut}
}

func fail(reason, file, format string, args ...any) error {
	return &Error{Problems: []Problem{{File: file, Message: fmt.Sprintf(format, args...), reason: reason}}}
}

// nearest returns the candidate that a person most likely meant by name, or
// "" if none is near.
func nearest(name string, candidates []string) string {
	best, limit := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < limit {
			best, limit = c, d
		}
	}
	return best
}

// distance is Levenshtein's, over bytes: field names are ASCII.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
