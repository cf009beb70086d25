// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// inline is a command in the middle of a sentence, or in backticks of a table.
var inline = regexp.MustCompile("`(lockstep [^`]+)`")

// name is what a command may be called; pages have placeholders in its place.
var name = regexp.MustCompile(`^[a-z][a-z-]+$`)

// commandsOf returns the command lines of a page: lines of fenced blocks, with
// their continuations, and commands in backticks.
func commandsOf(page string) (blocks, words []string) {
	fenced, joined := false, ""
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
			continue
		}
		if !fenced {
			for _, found := range inline.FindAllStringSubmatch(line, -1) {
				words = append(words, found[1])
			}
			continue
		}
		line = joined + strings.TrimPrefix(strings.TrimSpace(line), "$ ")
		if before, more := strings.CutSuffix(line, `\`); more {
			joined = before
			continue
		}
		joined = ""
		if strings.HasPrefix(line, "lockstep ") {
			blocks = append(blocks, line)
		}
	}
	return blocks, words
}

// argumentsOf splits a command line as a shell would, as far as pages go: quotes
// of both kinds, and nothing else.
func argumentsOf(line string) []string {
	var out []string
	var word strings.Builder
	quote, started := rune(0), false
	for _, c := range line {
		switch {
		case quote == 0 && (c == '\'' || c == '"'):
			quote, started = c, true
		case c == quote && quote != 0:
			quote = 0
		case quote == 0 && c == ' ':
			if started {
				out = append(out, word.String())
			}
			word.Reset()
			started = false
		case quote == 0 && c == '#' && !started:
			return out
		default:
			word.WriteRune(c)
			started = true
		}
	}
	if started {
		out = append(out, word.String())
	}
	return out
}

// wrong returns why the program rejects the command line; "" if it accepts it.
// A whole line is checked for arguments and required flags too.
func wrong(line string, whole bool) string {
	cmd, rest, err := newRootCommand().Find(argumentsOf(line)[1:])
	if err != nil {
		return err.Error()
	}
	if cmd.HasSubCommands() {
		if len(rest) > 0 && name.MatchString(rest[0]) {
			return cmd.CommandPath() + " has no command " + rest[0]
		}
		return ""
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err.Error()
	}
	if !whole {
		return ""
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err.Error()
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err.Error()
	}
	return ""
}

func TestTheCommandsOfThePagesExist(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, filepath.Join("..", "..", "README.md"), filepath.Join("..", "..", "examples", "README.md"),
		filepath.Join("..", "..", "docs", "reference", "reasons.md"))
	checked := 0
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks, words := commandsOf(string(raw))
		for _, line := range blocks {
			if problem := wrong(line, true); problem != "" {
				t.Errorf("%s: %s\n\t%s", page, line, problem)
			}
		}
		for _, line := range words {
			if problem := wrong(line, false); problem != "" {
				t.Errorf("%s: %s\n\t%s", page, line, problem)
			}
		}
		checked += len(blocks) + len(words)
	}
	if checked < 60 {
		t.Errorf("found %d commands, which can't be all", checked)
	}
}

func TestACommandThatDoesNotExistIsFound(t *testing.T) {
	for _, line := range []string{
		"lockstep realise build", "lockstep trust init --colour red", "lockstep release sign", "lockstep pki init --dir pki", "lockstep source looks",
	} {
		if wrong(line, true) == "" {
			t.Errorf("%s passed", line)
		}
	}
}
