// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// words are what Lockstep's texts don't use, each with the term of the field
// that they use instead (docs/reference/glossary.md).
var words = []struct{ pattern, instead string }{
	{`levelness|level by level|(?:is|are|was|were|isn't|aren't|be|become|becomes|became|not) level`, "complete (a release), in sync or ready (an object)"},
	{`ill|unwell`, "unhealthy"},
	{`look(?:s|ed|ing)? (?:at|again)|a look`, "reconcile, fetch, read or check"},
	{`told|tells?|telling|hears?|heard`, "report, notify, observe, send or receive"},
	{`says|said|knows|wants|thinks`, "a verb that fits a program: reports, has, requires"},
	{`go(?:es)? on|went on|going on`, "continue; still running"},
	{`anew`, "again; recreated"},
	{`mends?|by (?:itself|themselves)`, "automatically"},
	{`way back|(?:go|goes|going|went|gone) back`, "rollback, roll back"},
	{`walls?`, "trust boundary; invariant"},
	{`doors?`, "insecure option"},
	{`brakes?`, "pause, hold"},
	{`(?:a|the|each|every|next|last|first|full|safety) pass(?:es)?`, "sync, sync attempt"},
	{`definitions?`, "CRD, CustomResourceDefinition"},
	{`circles?`, "cycle"},
	{`foreign`, "untrusted; external, owned by another manager"},
	{`people|left to (?:users|others)`, "users, operators; unmanaged"},
	{`in force|stands`, "active, current"},
	{`spared|first sight`, "pre-existing; initial read"},
	{`le(?:ave|aves|ft|aving)[ -]out|leftout`, "exclude"},
	{`tak(?:e|es|en|ing) in|took in`, "load"},
	{`giv(?:e|es|en|ing) up|gave up`, "relinquish (a field); time out (a wait)"},
	{`carries|brought`, "contains; provides"},
	{`what was accepted|what runs|what is there`, "the accepted release, running workloads, the live object"},
	{`private language|puppets?|shel(?:f|ves)`, "a plain name"},
}

// exempt are uses of the words that are terms of the field, or quoted.
var exempt = regexp.MustCompile(`(?i)run levels?|log[ _-]levels?|level-triggered|CustomResourceDefinitions?|foreign layers?|` +
	`firewall|wall(?:-| )(?:clock|time)|wall seconds`)

// identifiers are parts of names that test set-ups used to have; one word, env,
// is used for all of them.
var identifiers = regexp.MustCompile(`(?:^|[a-z])(?:[rR]ig|[bB]ed|[wW]orld|[sS]helf|[pP]uppet|[cC]raft|[bB]rakes?|[lL]eftOut|[fF]oreign|[iI]llness(?:es)?|[dD]oors?)(?:[A-QS-Z0-9]|$)`)

// compiled returns the patterns for whole words, in any case.
func compiled() []*regexp.Regexp {
	out := make([]*regexp.Regexp, len(words))
	for i, w := range words {
		out[i] = regexp.MustCompile(`(?i)\b(?:` + w.pattern + `)\b`)
	}
	return out
}

// wrongWords returns the words of a text that aren't used, each with its
// replacement.
func wrongWords(patterns []*regexp.Regexp, text string) []string {
	text = exempt.ReplaceAllString(text, "…")
	var found []string
	for i, p := range patterns {
		if word := p.FindString(text); word != "" {
			found = append(found, strconv.Quote(word)+" (instead: "+words[i].instead+")")
		}
	}
	return found
}

func TestTheWordListFindsWhatItLists(t *testing.T) {
	patterns := compiled()
	for _, text := range []string{
		"the release is level", "level by level", "1.4.1 goes on", "it was told", "mends itself: yes", "a foreign manager", "Wall 3",
		"left out", "nothing in force", "the safety pass", "it says no", "left to people",
	} {
		if len(wrongWords(patterns, text)) == 0 {
			t.Errorf("%q has no wrong word", text)
		}
	}
	for _, text := range []string{"run level 30", "--log-level debug", "level-triggered", "a CustomResourceDefinition", "all tests pass", "wall clock"} {
		if found := wrongWords(patterns, text); len(found) > 0 {
			t.Errorf("%q: %v", text, found)
		}
	}
}

// TestPagesUseTheTermsOfTheField checks everything that users read in files:
// the pages, the CRDs, policies and alerts.
func TestPagesUseTheTermsOfTheField(t *testing.T) {
	patterns := compiled()
	for _, path := range pages(t) {
		raw, err := os.ReadFile(filepath.Join(root(t), path))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(raw)) {
			n++
			if path == "CHANGELOG.md" && strings.HasPrefix(line, "| ") {
				continue // the table of renamed things has their old names
			}
			for _, word := range wrongWords(patterns, line) {
				t.Errorf("%s:%d: %s", path, n, word)
			}
		}
	}
}

// pages are the Markdown files and the configuration below the root.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, top := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "config", "examples"} {
		err := filepath.WalkDir(filepath.Join(root(t), top), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			switch filepath.Ext(path) {
			case ".md", ".yaml", ".json":
				short, err := filepath.Rel(root(t), path)
				all = append(all, short)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(all) < 40 {
		t.Fatalf("found %d pages, which can't be all", len(all))
	}
	return all
}

// TestMessagesUseTheTermsOfTheField checks the strings of the programs: help,
// errors, conditions, events and log lines.
func TestMessagesUseTheTermsOfTheField(t *testing.T) {
	patterns := compiled()
	for _, f := range files(t) {
		if strings.HasSuffix(f.path, "_test.go") || strings.HasPrefix(f.path, "test/") || ast.IsGenerated(f.syntax) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if _, isImport := n.(*ast.ImportSpec); isImport {
				return false
			}
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil || !strings.Contains(text, " ") {
				return true // A key, a name or a format alone.
			}
			for _, word := range wrongWords(patterns, text) {
				t.Errorf("%s: %s in %.120q", f.set.Position(literal.Pos()), word, text)
			}
			return true
		})
	}
}

// TestCommentsUseTheTermsOfTheField checks comments, so that the code is read
// in the same words as the pages.
func TestCommentsUseTheTermsOfTheField(t *testing.T) {
	patterns := compiled()
	for _, f := range files(t) {
		if ast.IsGenerated(f.syntax) || f.path == "test/arch/words_test.go" {
			continue
		}
		for _, group := range f.syntax.Comments {
			for _, word := range wrongWords(patterns, group.Text()) {
				t.Errorf("%s: %s", f.set.Position(group.Pos()), word)
			}
		}
	}
}

// TestNamesUseTheTermsOfTheField checks declared identifiers.
func TestNamesUseTheTermsOfTheField(t *testing.T) {
	for _, f := range files(t) {
		if ast.IsGenerated(f.syntax) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Obj != nil && id.Obj.Pos() == id.Pos() && identifiers.MatchString(id.Name) {
				t.Errorf("%s: %s", f.set.Position(id.Pos()), id.Name)
			}
			return true
		})
	}
}
