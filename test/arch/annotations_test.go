// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// onPage matches an annotation's key on its page.
var onPage = regexp.MustCompile("`([a-z.]+\\.(?:dev|io)/[a-zA-Z-]*)`")

// The page of annotations is their contract: it has every annotation in the
// code, and none of ours that the code lacks.
func TestThePageOfAnnotationsHasThemAll(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "reference", "annotations.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := map[string]bool{}
	for _, m := range onPage.FindAllStringSubmatch(string(text), -1) {
		page[m[1]] = true
	}
	known := map[string]bool{}
	for _, f := range files(t) {
		if dir := filepath.ToSlash(filepath.Dir(f.path)); dir != "payload" && dir != "config/v1alpha1" {
			continue
		}
		for name, value := range constants(f.syntax) {
			if !strings.HasPrefix(name, "Annotation") && !strings.HasPrefix(name, "cvo") {
				continue
			}
			known[value] = true
			if !page[value] {
				t.Errorf("docs/reference/annotations.md lacks %s, which is %s in %s", value, name, f.path)
			}
		}
	}
	if len(known) < 30 {
		t.Errorf("found %d constants of annotations, which can't be all", len(known))
	}
	for key := range page {
		if strings.HasPrefix(key, "lockstep.dev/") && key != "lockstep.dev/" && !known[key] {
			t.Errorf("docs/reference/annotations.md has %s, which no constant is", key)
		}
	}
}

// constants returns the string constants of a file by name.
func constants(f *ast.File) map[string]string {
	found := map[string]string{}
	for _, declaration := range f.Decls {
		d, ok := declaration.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		for _, spec := range d.Specs {
			s, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for i, name := range s.Names {
				if i >= len(s.Values) {
					break
				}
				if literal, ok := s.Values[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if value, err := strconv.Unquote(literal.Value); err == nil {
						found[name.Name] = value
					}
				}
			}
		}
	}
	return found
}
