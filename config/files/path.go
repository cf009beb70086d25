// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// The limits of a tree, unless a caller sets its own.
const (
	// MaxTreeBytes is the size of all files together.
	MaxTreeBytes = 64 << 20
	// MaxTreeDepth is how many directories may contain each other.
	MaxTreeDepth = 32

	maxPath    = 1024
	maxElement = 255
)

// CheckPath checks the path of a file in a tree of untrusted content: clean,
// relative, separated by slashes, valid UTF-8 without control characters or
// backslashes, at most 1,024 bytes long with elements of at most 255, and
// without the elements that Git reserves (".git" and its aliases, as
// git fsck --strict does). A path that is too long is a *LimitError.
func CheckPath(name string) error {
	switch {
	case strings.HasPrefix(name, "/"):
		return errors.New("isn't a clean path: it is absolute")
	case utf8.ValidString(name) && !fs.ValidPath(name) || name == ".":
		return errors.New("isn't a clean path")
	case len(name) > maxPath:
		return &LimitError{What: "the path", Limit: maxPath, Value: int64(len(name))}
	}
	for element := range strings.SplitSeq(name, "/") {
		if err := CheckElement(element); err != nil {
			return err
		}
	}
	return nil
}

// CheckElement checks one element of a path, such as an entry of a Git tree, by
// the rules of CheckPath.
func CheckElement(element string) error {
	folded := strings.ToLower(element)
	switch {
	case element == "" || element == "." || element == "..":
		return fmt.Errorf("element %q is not allowed", element)
	case !utf8.ValidString(element):
		return fmt.Errorf("element %q isn't UTF-8", element)
	case strings.ContainsFunc(element, func(r rune) bool { return r == '/' || r == '\\' || unicode.IsControl(r) }):
		return fmt.Errorf("element %q contains a separator or a control character", element)
	case folded == ".git" || folded == "git~1" || strings.TrimRight(folded, ". ") == ".git":
		return fmt.Errorf("element %q is reserved by Git", element)
	case len(element) > maxElement:
		return &LimitError{What: "an element of the path", Limit: maxElement, Value: int64(len(element))}
	}
	return nil
}

// Depth returns in how many directories a path lies: 0 for a file at the root.
func Depth(name string) int { return strings.Count(name, "/") }

// Fold maps paths that some file system takes for the same to one string: those
// that differ in letter case or Unicode form only.
func Fold(name string) string {
	return strings.ToLower(strings.ToUpper(norm.NFC.String(name)))
}
