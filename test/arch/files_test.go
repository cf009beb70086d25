// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const licence = "// SPDX-FileCopyrightText: The Lockstep authors\n// SPDX-License-Identifier: Apache-2.0\n\n"

// file is a parsed source file.
type file struct {
	path   string // below the root
	text   string
	syntax *ast.File
	set    *token.FileSet
}

// files parses every Go file of the root module, tests included.
func files(t *testing.T) []file {
	t.Helper()
	var all []file
	for _, p := range packages(t) {
		paths, err := filepath.Glob(filepath.Join(p.Dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			set := token.NewFileSet()
			syntax, err := parser.ParseFile(set, path, text, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			short, err := filepath.Rel(root(t), path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, file{short, string(text), syntax, set})
		}
	}
	return all
}

func TestEveryFileNamesItsLicence(t *testing.T) {
	for _, f := range files(t) {
		if !strings.HasPrefix(f.text, licence) && !ast.IsGenerated(f.syntax) {
			t.Errorf("%s doesn't begin with the two SPDX lines and a blank one", f.path)
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range files(t) {
		dir := filepath.Dir(f.path)
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		documented[dir] = documented[dir] || f.syntax.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	for _, f := range files(t) {
		if strings.HasSuffix(f.path, "_test.go") || ast.IsGenerated(f.syntax) {
			continue
		}
		for _, declaration := range f.syntax.Decls {
			for _, name := range undocumented(declaration) {
				t.Errorf("%s: exported %s has no comment", f.set.Position(name.Pos()), name.Name)
			}
		}
	}
}

// undocumented returns the exported names of a declaration without a comment.
// A comment on a group applies to all its names.
func undocumented(declaration ast.Decl) []*ast.Ident {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		var names []*ast.Ident
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
					names = append(names, s.Name)
				}
			case *ast.ValueSpec:
				if s.Doc != nil || s.Comment != nil || d.Doc != nil {
					continue
				}
				for _, name := range s.Names {
					if name.IsExported() {
						names = append(names, name)
					}
				}
			}
		}
		return names
	}
	return nil
}

// exportedReceiver reports whether a function is no method or that of an
// exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	name, ok := receiver(d)
	return !ok || ast.IsExported(name)
}

// receiver returns the name of a method's type; false for a plain function.
func receiver(d *ast.FuncDecl) (string, bool) {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return "", false
	}
	at := d.Recv.List[0].Type
	for {
		switch x := at.(type) {
		case *ast.StarExpr:
			at = x.X
		case *ast.IndexExpr:
			at = x.X
		case *ast.IndexListExpr:
			at = x.X
		case *ast.Ident:
			return x.Name, true
		default:
			return "", false
		}
	}
}

func TestNothingRunsBeforeMain(t *testing.T) {
	for _, f := range files(t) {
		for _, declaration := range f.syntax.Decls {
			if d, ok := declaration.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.Name == "init" && !ast.IsGenerated(f.syntax) {
				t.Errorf("%s: func init: register and compute where the value is used", f.set.Position(d.Pos()))
			}
		}
	}
}

// TestNoTestSleepsOnTheRealClock finds time.Sleep outside synctest bubbles: a
// sleep is too short on a loaded machine and too long on any other. Wait for a
// condition with a deadline.
func TestNoTestSleepsOnTheRealClock(t *testing.T) {
	for _, f := range files(t) {
		if !strings.HasSuffix(f.path, "_test.go") || imported(f.syntax, "testing/synctest") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok || call.Sel.Name != "Sleep" {
				return true
			}
			if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == "time" {
				t.Errorf("%s: time.Sleep in a test", f.set.Position(call.Pos()))
			}
			return true
		})
	}
}

func imported(f *ast.File, path string) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(path) })
}
