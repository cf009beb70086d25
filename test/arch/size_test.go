// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The sizes above which a package comment explains why the package or the type
// isn't split.
const (
	maxFiles   = 15
	maxMethods = 40
)

// TestLargePackagesAndTypesExplainTheirSize finds packages and types that grew
// without a decision. The explanation is a sentence of the package comment that
// contains "files", or the type's name and "methods".
func TestLargePackagesAndTypesExplainTheirSize(t *testing.T) {
	sizes := map[string]*size{}
	for _, f := range files(t) {
		if strings.HasSuffix(f.path, "_test.go") || ast.IsGenerated(f.syntax) {
			continue
		}
		dir := filepath.ToSlash(filepath.Dir(f.path))
		if sizes[dir] == nil {
			sizes[dir] = &size{methods: map[string]int{}}
		}
		sizes[dir].add(f.syntax)
	}
	for _, dir := range slices.Sorted(maps.Keys(sizes)) {
		for _, problem := range sizes[dir].unexplained() {
			t.Errorf("%s: %s", dir, problem)
		}
	}
}

// size is the size of one package.
type size struct {
	comment string
	files   int
	methods map[string]int // by type
}

func (s *size) add(f *ast.File) {
	s.files++
	if f.Doc != nil {
		s.comment += f.Doc.Text()
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok {
			if name, ok := receiver(fn); ok {
				s.methods[name]++
			}
		}
	}
}

// unexplained returns what is too large without an explanation.
func (s *size) unexplained() []string {
	sentences := strings.Split(strings.ReplaceAll(s.comment, "\n", " "), ". ")
	explains := func(words ...string) bool {
		return slices.ContainsFunc(sentences, func(sentence string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(sentence, w) })
		})
	}
	var out []string
	if s.files > maxFiles && !explains("files") {
		out = append(out, fmt.Sprintf("%d files, more than %d: split the package, or explain in its comment why it has so many files", s.files, maxFiles))
	}
	for _, name := range slices.Sorted(maps.Keys(s.methods)) {
		if n := s.methods[name]; n > maxMethods && !explains(name, "methods") {
			out = append(out, fmt.Sprintf("%s has %d methods, more than %d: split the type, or explain in the package comment why it has so many methods", name, n, maxMethods))
		}
	}
	return out
}

func TestOnlyAnExplanationExcusesSize(t *testing.T) {
	large := size{comment: "Package x. A file per kind, so that it has many files.", files: maxFiles + 1, methods: map[string]int{"core": maxMethods + 1}}
	if got := large.unexplained(); len(got) != 1 || !strings.Contains(got[0], "core has 41 methods") {
		t.Errorf("%q", got)
	}
	large.comment += " The core is one state machine; its methods are its transitions."
	if got := large.unexplained(); len(got) != 0 {
		t.Errorf("%q", got)
	}
}
