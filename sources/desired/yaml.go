// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// The limits of declared documents.
const (
	maxFile      = 1 << 20 // bytes of one file
	maxDocuments = 1000    // in all
	maxNodes     = 200_000 // of one document, aliases expanded
	maxDepth     = 64      // of one document
)

// document is one YAML document with its file.
type document struct {
	file  string
	node  *yaml.Node // the content, as in the file
	value map[string]any
}

// parseFile returns the documents of one file, without empty ones.
func parseFile(file string, data []byte) ([]document, error) {
	if len(data) > maxFile {
		return nil, fail(ReasonLimitExceeded, file, "has %d bytes; the limit is %d", len(data), maxFile)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var out []document
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fail(ReasonInvalid, file, "%s", yamlError(err))
		}
		if len(out) == maxDocuments {
			return nil, fail(ReasonLimitExceeded, file, "has more than %d documents", maxDocuments)
		}
		if len(doc.Content) != 1 || doc.Content[0].ShortTag() == "!!null" {
			continue
		}
		root := doc.Content[0]
		c := converter{file: file}
		value, err := c.convert(root, 0)
		if err != nil {
			return nil, err
		}
		m, ok := value.(map[string]any)
		if !ok {
			return nil, c.errorf(root, "document is a %s; want an object with apiVersion, kind, metadata and spec", kindName(root))
		}
		out = append(out, document{file: file, node: root, value: m})
	}
}

func yamlError(err error) string {
	return strings.TrimPrefix(sanitize.Line(err.Error()), "yaml: ")
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "list"
	case yaml.MappingNode:
		return "object"
	default:
		return "single value"
	}
}

// converter converts nodes into JSON values. It rejects values that YAML 1.1 and
// 1.2, or two libraries, interpret differently.
type converter struct {
	file  string
	nodes int
}

func (c *converter) errorf(n *yaml.Node, format string, args ...any) error {
	return &Error{Problems: []Problem{{File: c.file, Line: n.Line, Message: fmt.Sprintf(format, args...)}}}
}

func (c *converter) convert(n *yaml.Node, depth int) (any, error) {
	if c.nodes++; c.nodes > maxNodes {
		return nil, fail(ReasonLimitExceeded, c.file, "a document has more than %d values after expanding aliases", maxNodes)
	}
	if depth > maxDepth {
		return nil, fail(ReasonLimitExceeded, c.file, "line %d is nested deeper than %d levels", n.Line, maxDepth)
	}
	if n.Style&yaml.TaggedStyle != 0 {
		return nil, c.errorf(n, "explicit tag %q; tags aren't supported", n.Tag)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return c.convert(n.Alias, depth+1)
	case yaml.MappingNode:
		return c.object(n, depth)
	case yaml.SequenceNode:
		out := make([]any, 0, len(n.Content))
		for _, e := range n.Content {
			v, err := c.convert(e, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	default:
		return c.scalar(n)
	}
}

func (c *converter) object(n *yaml.Node, depth int) (any, error) {
	out := make(map[string]any, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Value == "<<" && k.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0:
			return nil, c.errorf(k, "merge keys (<<) aren't supported; repeat the fields")
		case k.Kind != yaml.ScalarNode || k.ShortTag() != "!!str" || ambiguous(k):
			return nil, c.errorf(k, "key %q isn't a plain string; quote it", k.Value)
		}
		if _, ok := out[k.Value]; ok {
			return nil, c.errorf(k, "duplicate key %q; remove one", k.Value)
		}
		value, err := c.convert(v, depth+1)
		if err != nil {
			return nil, err
		}
		out[k.Value] = value
	}
	return out, nil
}

// truths are booleans in YAML 1.1 and strings in YAML 1.2.
var truths = regexp.MustCompile(`^(y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF)$`)

// octal matches a number with a leading zero, whose base depends on the version.
var octal = regexp.MustCompile(`^[-+]?0[0-9_]+$`)

func ambiguous(n *yaml.Node) bool {
	plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	return plain && (truths.MatchString(n.Value) || octal.MatchString(n.Value))
}

func (c *converter) scalar(n *yaml.Node) (any, error) {
	if ambiguous(n) {
		return nil, c.errorf(n, "%q is ambiguous in YAML; quote it, or use true or false", n.Value)
	}
	switch n.ShortTag() {
	case "!!null":
		return nil, nil //nolint:nilnil // JSON's null
	case "!!bool":
		return strconv.ParseBool(strings.ToLower(n.Value))
	case "!!int":
		var i int64
		if err := n.Decode(&i); err != nil {
			return nil, c.errorf(n, "number %q exceeds 64 bits", n.Value)
		}
		return i, nil
	case "!!float":
		var f float64
		if err := n.Decode(&f); err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			return nil, c.errorf(n, "%q isn't a finite number", n.Value)
		}
		return f, nil
	default: // !!str and !!timestamp, which JSON has as a string
		return n.Value, nil
	}
}

// at returns the line of the deepest existing node on a field path, such as
// "spec.canary[0].hosts" or "labels[a.b]".
func (d document) at(fieldPath string) int {
	n := d.node
	if n == nil {
		return 0
	}
	line := n.Line
	for _, step := range steps(fieldPath) {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		next, keyLine := child(n, step)
		if next == nil {
			return line
		}
		n, line = next, keyLine
	}
	return line
}

// child returns the value at step and the line of its key.
func child(n *yaml.Node, step string) (*yaml.Node, int) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == step {
				return n.Content[i+1], n.Content[i].Line
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line
		}
	default: // a scalar has no children
	}
	return nil, 0
}

// steps splits "a.b[0].c" and "a[x.y]" into its names and indices.
func steps(fieldPath string) []string {
	var out []string
	for fieldPath != "" {
		switch fieldPath[0] {
		case '.':
			fieldPath = fieldPath[1:]
		case '[':
			inner, rest, ok := strings.Cut(fieldPath[1:], "]")
			if !ok {
				return out
			}
			out = append(out, strings.Trim(inner, `"`))
			fieldPath = rest
		default:
			i := strings.IndexAny(fieldPath, ".[")
			if i < 0 {
				i = len(fieldPath)
			}
			out = append(out, fieldPath[:i])
			fieldPath = fieldPath[i:]
		}
	}
	return out
}
