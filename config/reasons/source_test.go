// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reasons

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// word matches a reason, as the API server requires it in conditions.
var word = regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)

// found maps each reason to its positions in the source.
type found map[string][]string

// collector gathers the reasons of one package.
type collector struct {
	set   *token.FileSet
	found found
	// params maps functions with a parameter for a reason to its index.
	params map[string]int
	// results maps functions with a named result for a reason to its index.
	results map[string]int
}

// inSource collects all reasons in the source of the product.
func inSource(t *testing.T) found {
	t.Helper()
	all := found{}
	root := filepath.Join("..", "..")
	for _, top := range []string{"config", "payload", "sources", "nodeos", "reconciler", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return err
			}
			if slices.Contains([]string{"reasons", "hosttest", "sourcetest", "agentpb", "testdata"}, d.Name()) {
				return fs.SkipDir
			}
			collect(t, path, all)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func collect(t *testing.T, dir string, all found) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{set: token.NewFileSet(), found: all, params: map[string]int{
		"reasonOf": 1, "ReasonOf": 1, "Refuse": 0, "NewError": 0, "Succeeded": 0, "Event": 2, "True": 1, "False": 1, "Unknown": 1, "If": 2,
	}, results: map[string]int{}}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(c.set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	for _, f := range files {
		ast.Inspect(f, c.signatures)
	}
	for _, f := range files {
		ast.Inspect(f, c.visit)
	}
}

// isReasonName reports whether an identifier denotes a reason.
func isReasonName(name string) bool {
	l := strings.ToLower(name)
	return strings.HasPrefix(l, "reason") || strings.HasSuffix(l, "reason")
}

// signatures records the functions that take or return a reason.
func (c *collector) signatures(n ast.Node) bool {
	f, ok := n.(*ast.FuncDecl)
	if !ok {
		return true
	}
	record := func(list *ast.FieldList, into map[string]int) {
		if list == nil {
			return
		}
		at := 0
		for _, field := range list.List {
			for _, name := range field.Names {
				if isReasonName(name.Name) {
					into[f.Name.Name] = at
				}
				at++
			}
		}
	}
	record(f.Type.Params, c.params)
	record(f.Type.Results, c.results)
	return true
}

// add records a string literal in the place of a reason; other expressions are
// recorded where they are constructed.
func (c *collector) add(e ast.Expr) {
	switch x := e.(type) {
	case *ast.BasicLit:
		if x.Kind != token.STRING {
			return
		}
		if s, err := strconv.Unquote(x.Value); err == nil && word.MatchString(s) {
			at := c.set.Position(x.Pos())
			c.found[s] = append(c.found[s], strings.TrimPrefix(at.Filename, "../../")+":"+strconv.Itoa(at.Line))
		}
	case *ast.CallExpr: // orDefault(x, "Reason"), cmp.Or(x, "Reason")
		for _, arg := range x.Args {
			c.add(arg)
		}
	}
}

func (c *collector) visit(n ast.Node) bool {
	switch x := n.(type) {
	case *ast.ValueSpec:
		c.value(x)
	case *ast.FuncDecl:
		c.function(x)
	case *ast.KeyValueExpr:
		if key, ok := x.Key.(*ast.Ident); ok && (isReasonName(key.Name) || key.Name == "Code") {
			c.add(x.Value)
		}
	case *ast.CompositeLit:
		if id, ok := x.Type.(*ast.Ident); ok && id.Name == "reasonError" && len(x.Elts) > 0 {
			c.add(x.Elts[0])
		}
		for i, e := range x.Elts { // Condition{kind, metav1.ConditionFalse, "Reason", …}
			if i > 0 && strings.HasPrefix(last(x.Elts[i-1]), "Condition") {
				c.add(e)
			}
		}
	case *ast.AssignStmt:
		for i, left := range x.Lhs {
			if len(x.Lhs) == len(x.Rhs) && isReasonName(last(left)) {
				c.add(x.Rhs[i])
			}
		}
	case *ast.CallExpr:
		if at, ok := c.params[last(x.Fun)]; ok && at < len(x.Args) {
			c.add(x.Args[at])
		}
	}
	return true
}

// value records a constant or variable that is named or typed as a reason.
func (c *collector) value(x *ast.ValueSpec) {
	typed := x.Type != nil && last(x.Type) == "Reason"
	check := strings.HasSuffix(filepath.ToSlash(filepath.Dir(c.set.Position(x.Pos()).Filename)), "payload/precondition")
	for i, name := range x.Names {
		if i < len(x.Values) && (typed || check || isReasonName(name.Name)) {
			c.add(x.Values[i])
		}
	}
}

// function records the results of methods named Reason and of functions with a
// result for a reason.
func (c *collector) function(x *ast.FuncDecl) {
	at, ok := c.results[x.Name.Name]
	if x.Name.Name == "Reason" {
		at, ok = 0, true
	}
	if !ok || x.Body == nil {
		return
	}
	ast.Inspect(x.Body, func(n ast.Node) bool {
		if r, ok := n.(*ast.ReturnStmt); ok && at < len(r.Results) {
			c.add(r.Results[at])
		}
		return true
	})
}

// last returns the last name of an expression: x of a.b.x.
func last(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

// elsewhere lists the states and steps that are also used as reasons.
var elsewhere = []string{"Staging", "RetrievePayload", "VerifyPayload", "LoadPayload", "PreconditionChecks"}

func TestEveryReasonInTheSourceIsListed(t *testing.T) {
	all := inSource(t)
	if len(all) < 200 {
		t.Errorf("found %d reasons in the source, want at least 200", len(all))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if _, ok := Find(name); !ok {
			t.Errorf("%s (%s) has no line in config/reasons", name, strings.Join(all[name], ", "))
		}
	}
}

func TestEveryListedReasonIsInTheSource(t *testing.T) {
	all := inSource(t)
	seen := map[string]bool{}
	for _, g := range Groups() {
		for _, r := range g.Reasons {
			if all[r.Name] == nil && !slices.Contains(elsewhere, r.Name) {
				t.Errorf("%s isn't in the source", r.Name)
			}
			if seen[r.Name] {
				t.Errorf("%s is listed twice", r.Name)
			}
			seen[r.Name] = true
			if r.Meaning == "" || strings.ContainsAny(r.Meaning+r.Action, "|\n") {
				t.Errorf("%s: want a meaning, and no bars or line breaks", r.Name)
			}
		}
	}
}

func TestThePageIsUpToDate(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "reasons.md"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Page(), string(page)); diff != "" {
		t.Errorf("docs/reference/reasons.md is out of date; run make generate (-want +got):\n%s", diff)
	}
}
