// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"strings"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// The condition reasons of an Error.
const (
	ReasonInvalid       = "InvalidDesiredState" // invalid documents
	ReasonPathNotFound  = "PathNotFound"        // spec.path isn't in the source
	ReasonEmpty         = "EmptyDesiredState"   // spec.path contains no documents
	ReasonSelfReference = "SelfReference"       // a source changes itself, or adds one that the trust policy doesn't allow
	ReasonLimitExceeded = "LimitExceeded"       // more documents, bytes or depth than allowed
)

// maxProblems is the maximum number of problems in one Error.
const maxProblems = 20

// Problem is one problem with its position.
type Problem struct {
	// File inside the source; "" if unknown.
	File string
	// Line in File, counted from 1; 0 if unknown.
	Line int
	// Object as "ClusterRelease/platform"; "" if unknown.
	Object string
	// Message states the problem and how to fix it.
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

// Error lists the problems of a desired state, at most maxProblems.
type Error struct {
	Problems []Problem
	// Cut is the number of omitted problems.
	Cut int
}

// Error implements error; it returns one line per problem.
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

// Reason returns the condition reason: the first that isn't InvalidDesiredState,
// so that a violated trust boundary is always reported.
func (e *Error) Reason() string {
	for _, p := range e.Problems {
		if p.reason != "" && p.reason != ReasonInvalid {
			return p.reason
		}
	}
	return ReasonInvalid
}

// problems collects the problems of all steps.
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

// nearest returns the candidate most similar to name, or "" if none is similar.
func nearest(name string, candidates []string) string {
	best, limit := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < limit {
			best, limit = c, d
		}
	}
	return best
}

// distance returns the Levenshtein distance in bytes; field names are ASCII.
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
