// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// row is a row of a concept table: the name there and the place here.
var row = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (`([^`]+)`|none|not yet) \\| .+ \\|$")

// TestConceptsAreAtTheirPlaces finds every place in the source.
func TestConceptsAreAtTheirPlaces(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "reference", "concepts.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := row.FindAllStringSubmatch(string(text), -1)
	const items = 100 // the two documents have more than this together
	if len(rows) < items {
		t.Errorf("found %d rows, want at least %d", len(rows), items)
	}
	names := declared(t)
	for _, r := range rows {
		if place := r[3]; place != "" && !names[place] {
			t.Errorf("%s should be %s, which doesn't exist", r[1], place)
		}
	}
}

// declared returns the exported names of the project as package.Name, and as
// package.Type.Member for methods, methods of interfaces and fields.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, f := range files(t) {
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		dir := filepath.ToSlash(filepath.Dir(f.path))
		for _, declaration := range f.syntax.Decls {
			for _, name := range exported(declaration) {
				names[dir+"."+name] = true
			}
		}
	}
	return names
}

func exported(declaration ast.Decl) []string {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return []string{d.Name.Name}
		}
		if name, ok := receiver(d); ok {
			return []string{name + "." + d.Name.Name}
		}
	case *ast.GenDecl:
		var names []string
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					names = append(names, name.Name)
				}
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
				names = append(names, members(s)...)
			}
		}
		return names
	}
	return nil
}

// members returns Type.Member for the fields or methods of a type.
func members(s *ast.TypeSpec) []string {
	var list *ast.FieldList
	switch x := s.Type.(type) {
	case *ast.StructType:
		list = x.Fields
	case *ast.InterfaceType:
		list = x.Methods
	default:
		return nil
	}
	var names []string
	for _, field := range list.List {
		for _, name := range field.Names {
			names = append(names, s.Name.Name+"."+name.Name)
		}
	}
	return names
}
