// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// pkg is a package as go list prints it.
type pkg struct {
	ImportPath string   `json:"ImportPath"`
	Dir        string   `json:"Dir"`
	Imports    []string `json:"Imports"`
	Deps       []string `json:"Deps"`
}

// name is the import path below the module's.
func (p pkg) name() string { return strings.TrimPrefix(p.ImportPath, module) }

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// listed is the output of go list, run once.
var listed = sync.OnceValues(func() ([]byte, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,Deps", "./...")
	cmd.Dir = "../.."
	return cmd.Output()
})

// packages lists the project's own packages, of the root module.
func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := listed()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	} else if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("go list found %d packages, which can't be all", len(all))
	}
	return all
}

// matches reports whether path is the pattern, or in its tree where it ends in
// /... (the root of a tree belongs to it).
func matches(pattern, path string) bool {
	if pattern == "..." {
		return true
	}
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == tree || strings.HasPrefix(path, tree+"/")
	}
	return path == pattern
}

func anyMatches(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, path) })
}

func TestEveryPackageImportsOnlyWhatItsLineAllows(t *testing.T) {
	for _, p := range packages(t) {
		allowed, known := imports[p.name()]
		if !known {
			t.Errorf("%s has no line in the table of imports", p.name())
			continue
		}
		for _, path := range p.Imports {
			name, ours := strings.CutPrefix(path, module)
			if ours && !anyMatches(allowed, name) {
				t.Errorf("%s imports %s; its line allows %v", p.name(), name, allowed)
			}
		}
	}
}

func TestARestrictedModuleIsImportedOnlyWhereItIsAllowed(t *testing.T) {
	for _, p := range packages(t) {
		for _, path := range p.Imports {
			for pattern, users := range restricted {
				if matches(pattern, path) && !anyMatches(users, p.name()) {
					t.Errorf("%s imports %s; only %v may", p.name(), path, users)
				}
			}
		}
	}
}

func TestAProgramLinksNothingThatItMustNotHold(t *testing.T) {
	for _, p := range packages(t) {
		for _, dep := range p.Deps {
			if anyMatches(unlinked[p.name()], dep) {
				t.Errorf("%s links %s", p.name(), dep)
			}
		}
	}
}

func TestEveryLineOfTheTablesCanMatch(t *testing.T) {
	for name, allowed := range imports {
		for _, a := range allowed {
			base := strings.TrimSuffix(a, "/...")
			if _, known := imports[base]; !known && base != "..." && base != "config" && base != "sources" {
				t.Errorf("the line of %s allows %s, which has no line itself", name, a)
			}
		}
	}
	for name := range unlinked {
		if _, known := imports[name]; !known {
			t.Errorf("%s must not link something, but has no line", name)
		}
	}
}

func TestNoFolderIsAGrabBag(t *testing.T) {
	bags := []string{"util", "utils", "common", "helper", "helpers", "lib", "libs", "misc", "shared", "base"}
	for _, p := range packages(t) {
		for element := range strings.SplitSeq(p.name(), "/") {
			if slices.Contains(bags, element) {
				t.Errorf("%s: name a package after what it does", p.name())
			}
		}
	}
}
