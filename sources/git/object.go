// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/sources"
)

// maxCommit limits a commit or tag object.
const maxCommit = 1 << 20

// commit is a commit object, parsed strictly, so that the parsed content is
// exactly the signed content.
type commit struct {
	tree      plumbing.Hash
	parents   []plumbing.Hash
	when      time.Time // of the committer
	subject   string
	signature []byte // the armored block; nil if unsigned
	payload   []byte // the bytes that the signature covers
}

// parseCommit parses the raw bytes of a commit object. The headers must begin with
// tree, parents, author and committer in this order, as git fsck requires; others
// may follow, with at most one signature.
func parseCommit(raw []byte) (*commit, error) {
	head, message, ok := bytes.Cut(raw, []byte("\n\n"))
	if !ok {
		if head, ok = bytes.CutSuffix(raw, []byte("\n")); !ok {
			return nil, fmt.Errorf("commit header has no end")
		}
	}
	if bytes.IndexByte(head, 0) >= 0 {
		return nil, fmt.Errorf("commit header contains a zero byte")
	}
	headers, err := splitHeaders(head)
	if err != nil {
		return nil, err
	}
	c := &commit{subject: subject(message)}
	rest, err := c.fixed(headers)
	if err != nil {
		return nil, err
	}
	for _, h := range rest {
		switch h.key {
		case "tree", "parent", "author", "committer":
			return nil, fmt.Errorf("commit header %q is in the wrong place", h.key)
		case "gpgsig":
			if c.signature != nil {
				return nil, fmt.Errorf("commit has more than one signature")
			}
			c.signature = []byte(strings.ReplaceAll(h.value, "\n ", "\n") + "\n")
		case "gpgsig-sha256":
			return nil, fmt.Errorf("commit has a signature for another object format (gpgsig-sha256)")
		}
	}
	c.payload = withoutSignature(raw, headers)
	return c, nil
}

// header is one raw header with its continuation lines.
type header struct {
	key, value string
	from, to   int // position, line break included
}

func splitHeaders(head []byte) ([]header, error) {
	var out []header
	at := 0
	for line := range strings.SplitSeq(string(head), "\n") {
		end := at + len(line) + 1
		if strings.HasPrefix(line, " ") {
			if len(out) == 0 {
				return nil, fmt.Errorf("commit starts with a continuation line")
			}
			last := &out[len(out)-1]
			last.value += "\n" + line
			last.to = end
		} else {
			key, value, ok := strings.Cut(line, " ")
			if !ok || key == "" {
				return nil, fmt.Errorf("commit has a header line without a value")
			}
			out = append(out, header{key: key, value: value, from: at, to: end})
		}
		at = end
	}
	return out, nil
}

// fixed parses the mandatory headers and returns the others.
func (c *commit) fixed(headers []header) ([]header, error) {
	var err error
	take := func(key string) (string, bool) {
		if len(headers) == 0 || headers[0].key != key || strings.Contains(headers[0].value, "\n") {
			return "", false
		}
		value := headers[0].value
		headers = headers[1:]
		return value, true
	}
	value, ok := take("tree")
	if !ok {
		return nil, fmt.Errorf("commit doesn't start with its tree")
	}
	if c.tree, err = parseHash(value); err != nil {
		return nil, err
	}
	for value, ok = take("parent"); ok; value, ok = take("parent") {
		parent, err := parseHash(value)
		if err != nil {
			return nil, err
		}
		c.parents = append(c.parents, parent)
	}
	if _, ok = take("author"); !ok {
		return nil, fmt.Errorf("commit has no author after its parents")
	}
	if value, ok = take("committer"); !ok {
		return nil, fmt.Errorf("commit has no committer after its author")
	}
	c.when = identTime(value)
	return headers, nil
}

// withoutSignature returns raw without the signature header: the signed bytes.
func withoutSignature(raw []byte, headers []header) []byte {
	for _, h := range headers {
		if h.key == "gpgsig" {
			return append(bytes.Clone(raw[:h.from]), raw[h.to:]...)
		}
	}
	return raw
}

func parseHash(s string) (plumbing.Hash, error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 20 || s != strings.ToLower(s) {
		return plumbing.ZeroHash, fmt.Errorf("%d characters that aren't a SHA-1 hash", len(s))
	}
	return plumbing.Hash(raw), nil
}

// identTime reads the time of "Name <mail> 1700000000 +0100"; zero if it has none.
func identTime(ident string) time.Time {
	fields := strings.Fields(ident[strings.LastIndexByte(ident, '>')+1:])
	if len(fields) == 0 {
		return time.Time{}
	}
	seconds, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || seconds < 0 || seconds > 1<<40 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

func subject(message []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimLeft(message, "\n"), []byte("\n"))
	if len(line) > 1024 {
		line = line[:1024]
	}
	return strings.ToValidUTF8(string(line), "")
}

// treeEntry is one entry of a Git tree.
type treeEntry struct {
	mode string
	name string
	hash plumbing.Hash
}

// The modes that git fsck --strict accepts.
const (
	modeFile       = "100644"
	modeExecutable = "100755"
	modeLink       = "120000"
	modeDir        = "40000"
	modeSubmodule  = "160000"
)

// parseTree parses the raw bytes of a tree object with the checks of git fsck
// --strict: modes without padding, allowed names, sorted and unique entries. dir
// is the path of the tree, for errors.
func parseTree(dir string, raw []byte) ([]treeEntry, error) {
	var out []treeEntry
	for len(raw) > 0 {
		mode, rest, ok := bytes.Cut(raw, []byte(" "))
		name, rest, ok2 := bytes.Cut(rest, []byte{0})
		if !ok || !ok2 || len(rest) < 20 {
			return nil, sources.NewTreeError(dir, "tree object is truncated")
		}
		e := treeEntry{mode: string(mode), name: string(name), hash: plumbing.Hash(rest[:20])}
		raw = rest[20:]
		if err := e.check(dir); err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && out[n-1].sortKey() >= e.sortKey() {
			return nil, sources.NewTreeError(join(dir, e.name), "entries are not sorted and unique (treeNotSorted, duplicateEntries)")
		}
		out = append(out, e)
	}
	return out, nil
}

// sortKey returns the name by which Git sorts: a directory ends in a slash.
func (e treeEntry) sortKey() string {
	if e.mode == modeDir {
		return e.name + "/"
	}
	return e.name
}

func (e treeEntry) check(dir string) error {
	full := join(dir, e.name)
	if err := sources.PathError(full, files.CheckElement(e.name)); err != nil {
		return err
	}
	switch e.mode {
	case modeFile, modeExecutable, modeLink, modeDir:
	case modeSubmodule:
		return sources.NewTreeError(full, "is a submodule, which isn't supported: commit its content or use a second source")
	default:
		return sources.NewTreeError(full, "has mode %.12q; want %s, %s, %s or %s", e.mode, modeFile, modeExecutable, modeLink, modeDir)
	}
	if e.hash.IsZero() {
		return sources.NewTreeError(full, "refers to the zero object")
	}
	return nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
