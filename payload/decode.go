// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits bound a payload.
type Limits struct {
	// Bytes of all files together, unpacked.
	Bytes int64
	// Manifests counts documents.
	Manifests int
	// Document is the largest document in bytes of JSON: an API server stores
	// no object beyond about 1.5 MiB.
	Document int
	// Depth of nested lists and mappings.
	Depth int
	// Aliases is how often the aliases of one document are expanded.
	Aliases int
}

// maxDocument is the largest object in bytes of JSON.
const maxDocument = 1400 << 10

// DefaultLimits returns the limits that hold where none are given.
func DefaultLimits() Limits {
	return Limits{Bytes: 64 << 20, Manifests: 20_000, Document: maxDocument, Depth: 96, Aliases: 100}
}

// document is one non-empty document of a file.
type document struct {
	content map[string]any
	// number counts from 1 within the file.
	number, line int
}

// oddity is something that CVO accepts and we refuse: a warning in the one
// mode, an error in the other.
type oddity struct {
	file         string
	number, line int
	message      string
}

// fileDecoder decodes the documents of one file.
type fileDecoder struct {
	file   string
	limits Limits
	docs   []document
	odd    []oddity

	// of the current document:
	number  int
	aliases int
	size    int
}

var bom = []byte("\xef\xbb\xbf")

// decodeFile returns the documents of a file. The stream is parsed as a
// whole, not split at lines of dashes: a line of a block scalar may look like
// a separator, and one with a comment or directives doesn't.
func decodeFile(file string, data []byte, limits Limits) (docs []document, odd []oddity, err error) {
	d := &fileDecoder{file: file, limits: limits}
	// The YAML parser is not ours; whatever trips it must not end the process.
	defer func() {
		if r := recover(); r != nil {
			err = d.errorf(ReasonInvalid, 0, "the YAML parser failed: %v", r)
		}
	}()
	if rest, found := bytes.CutPrefix(data, bom); found {
		d.oddf(1, "the file starts with a byte-order mark; remove it")
		data = rest
	}
	if first := bytes.TrimLeft(data, " \t\r\n"); len(first) > 0 && first[0] == '{' {
		if ok, err := d.decodeJSON(data); ok || err != nil {
			return d.docs, d.odd, err
		}
		d.docs, d.number = nil, 0
	}
	err = d.decodeYAML(data)
	return d.docs, d.odd, err
}

// decodeYAML decodes the file as a stream of YAML documents.
func (d *fileDecoder) decodeYAML(data []byte) error {
	stream := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var node yaml.Node
		switch err := stream.Decode(&node); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return d.syntax(err)
		}
		d.number++
		if err := d.document(&node); err != nil {
			return err
		}
	}
}

// document converts one document.
func (d *fileDecoder) document(node *yaml.Node) error {
	d.aliases, d.size = 0, 0
	if node.Kind == yaml.DocumentNode {
		if len(node.Content) != 1 {
			return d.errorf(ReasonInvalid, node.Line, "the document has %d roots, want 1", len(node.Content))
		}
		node = node.Content[0]
	}
	value, err := d.value(node, 0)
	if err != nil {
		return err
	}
	switch value := value.(type) {
	case nil:
		d.oddf(node.Line, "the document is empty; remove the separator (---)")
		return nil
	case map[string]any:
		if len(d.docs) >= d.limits.Manifests {
			return d.errorf(ReasonLimit, node.Line, "more than %d documents", d.limits.Manifests)
		}
		d.docs = append(d.docs, document{content: value, number: d.number, line: node.Line})
		return nil
	default:
		return d.errorf(ReasonInvalid, node.Line, "the document is a %s, want a mapping", typeName(value))
	}
}

// value converts a node to what encoding/json would make of it, but for
// integers, which are int64.
func (d *fileDecoder) value(node *yaml.Node, depth int) (any, error) {
	if depth > d.limits.Depth {
		return nil, d.errorf(ReasonLimit, node.Line, "nested deeper than %d", d.limits.Depth)
	}
	if d.size += len(node.Value) + 1; d.size > d.limits.Document {
		return nil, d.errorf(ReasonLimit, node.Line, "the document is larger than %d bytes", d.limits.Document)
	}
	switch node.Kind {
	case yaml.ScalarNode:
		return d.scalar(node)
	case yaml.MappingNode:
		return d.mapping(node, depth)
	case yaml.SequenceNode:
		list := make([]any, len(node.Content))
		for i, item := range node.Content {
			value, err := d.value(item, depth+1)
			if err != nil {
				return nil, err
			}
			list[i] = value
		}
		return list, nil
	case yaml.AliasNode:
		if d.aliases++; d.aliases > d.limits.Aliases {
			return nil, d.errorf(ReasonLimit, node.Line, "more than %d aliases are expanded", d.limits.Aliases)
		}
		return d.value(node.Alias, depth+1)
	default:
		return nil, d.errorf(ReasonInvalid, node.Line, "a node of an unknown kind")
	}
}

// scalar converts a scalar by its style and tag.
func (d *fileDecoder) scalar(node *yaml.Node) (any, error) {
	if node.Style&yaml.TaggedStyle != 0 {
		return d.tagged(node)
	}
	if node.Style != 0 {
		return node.Value, nil
	}
	value, ok := resolvePlain(node.Value)
	if !ok {
		return nil, d.errorf(ReasonInvalid, node.Line, "the number %s has no form in JSON; put it in quotes if it is text", node.Value)
	}
	return value, nil
}

// tagged converts a scalar with a tag of its own.
func (d *fileDecoder) tagged(node *yaml.Node) (any, error) {
	if node.Tag == "!!str" {
		return node.Value, nil
	}
	value, ok := resolvePlain(node.Value)
	switch value := value.(type) {
	case bool:
		ok = ok && node.Tag == "!!bool"
	case int64:
		ok = ok && (node.Tag == "!!int" || node.Tag == "!!float")
	case float64:
		ok = ok && node.Tag == "!!float"
	case nil:
		ok = ok && node.Tag == "!!null"
	default:
		_ = value
		ok = false
	}
	if !ok {
		return nil, d.errorf(ReasonInvalid, node.Line, "the tag %s isn't supported for this value", node.Tag)
	}
	return value, nil
}

// mapping converts a mapping; of a repeated key the last one counts, as CVO
// has it.
func (d *fileDecoder) mapping(node *yaml.Node, depth int) (any, error) {
	content := make(map[string]any, len(node.Content)/2)
	var merges []*yaml.Node
	for i := 0; i+1 < len(node.Content); i += 2 {
		keyNode := node.Content[i]
		if keyNode.Tag == "!!merge" && keyNode.Style == 0 {
			d.oddf(keyNode.Line, "a merge key (<<); write the content out")
			merges = append(merges, node.Content[i+1])
			continue
		}
		key, err := d.key(keyNode, depth)
		if err != nil {
			return nil, err
		}
		value, err := d.value(node.Content[i+1], depth+1)
		if err != nil {
			return nil, err
		}
		before := len(content)
		if content[key] = value; len(content) == before {
			d.oddf(keyNode.Line, "the key %q stands twice in one mapping; the last one counts", key)
		}
	}
	for _, from := range merges {
		if err := d.merge(content, from, depth); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// merge adds what content hasn't: a mapping, or a list of mappings of which
// the earlier count (YAML 1.1, merge key type).
func (d *fileDecoder) merge(content map[string]any, node *yaml.Node, depth int) error {
	value, err := d.value(node, depth+1)
	if err != nil {
		return err
	}
	list, isList := value.([]any)
	if !isList {
		list = []any{value}
	}
	for _, item := range list {
		from, isMap := item.(map[string]any)
		if !isMap {
			return d.errorf(ReasonInvalid, node.Line, "a merge key (<<) names a %s, want a mapping", typeName(item))
		}
		for key, value := range from {
			if _, exists := content[key]; !exists {
				content[key] = value
			}
		}
	}
	return nil
}

// key converts the key of a mapping as sigs.k8s.io/yaml does.
func (d *fileDecoder) key(node *yaml.Node, depth int) (string, error) {
	if node.Kind == yaml.ScalarNode && node.Style&yaml.TaggedStyle == 0 && node.Style != 0 {
		d.size += len(node.Value) + 1
		return node.Value, nil
	}
	value, err := d.value(node, depth+1)
	if err != nil {
		return "", err
	}
	switch value := value.(type) {
	case string:
		return value, nil
	case bool:
		d.oddf(node.Line, "the key %s is a boolean; put it in quotes", node.Value)
		return strconv.FormatBool(value), nil
	case int64:
		return strconv.FormatInt(value, 10), nil
	case float64:
		return strconv.FormatFloat(value, 'g', -1, 32), nil
	default:
		return "", d.errorf(ReasonInvalid, node.Line, "a key is a %s, want a string", typeName(value))
	}
}

func (d *fileDecoder) oddf(line int, format string, args ...any) {
	d.odd = append(d.odd, oddity{d.file, d.number, line, fmt.Sprintf(format, args...)})
}

func (d *fileDecoder) errorf(kind string, line int, format string, args ...any) error {
	return &LoadError{Kind: kind, File: d.file, Document: d.number, Line: line, Message: fmt.Sprintf(format, args...)}
}

// yamlLine finds the line that the parser names in its text.
var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntax makes an error of the parser ours.
func (d *fileDecoder) syntax(err error) error {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = err.Error()[len(m[0]):]
	}
	d.number++
	return d.errorf(ReasonInvalid, line, "%s", text)
}
