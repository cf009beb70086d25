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

// Limits of a payload.
type Limits struct {
	// Bytes is the total size of all files, unpacked.
	Bytes int64
	// Manifests is the number of documents.
	Manifests int
	// Document is the size of one document, in bytes of JSON. API servers store
	// objects of up to about 1.5 MiB.
	Document int
	// Depth is the nesting depth of lists and mappings.
	Depth int
	// Aliases is the number of alias expansions in one document.
	Aliases int
}

// maxDocument is the largest object in bytes of JSON.
const maxDocument = 1400 << 10

// DefaultLimits returns the default limits.
func DefaultLimits() Limits {
	return Limits{Bytes: 64 << 20, Manifests: 20_000, Document: maxDocument, Depth: 96, Aliases: 100}
}

// document is one non-empty document of a file.
type document struct {
	content map[string]any
	// number counts from 1 within the file.
	number, line int
	// node is the document's YAML, if the decoder keeps nodes.
	node *yaml.Node
}

// deviation is content that CVO accepts: a warning in CVO payloads and an error
// in all others.
type deviation struct {
	file         string
	number, line int
	message      string
	// duplicate is true for a key that a mapping has twice.
	duplicate bool
}

// fileDecoder decodes the documents of one file.
type fileDecoder struct {
	file       string
	limits     Limits
	docs       []document
	deviations []deviation
	// keepNodes keeps the YAML of the documents, to find the lines of fields.
	keepNodes bool
	// anyRoot accepts documents that aren't mappings, and drops them.
	anyRoot bool

	// The current document:
	number  int
	aliases int
	size    int
}

var bom = []byte("\xef\xbb\xbf")

// decodeFile returns the documents of a file. It parses the whole stream instead
// of splitting it at separators: lines of a block scalar may look like
// separators, and separators may contain comments or directives.
//
// Documents without content and a byte-order mark are skipped, as kubectl and
// kustomize do.
func decodeFile(file string, data []byte, limits Limits) (docs []document, deviations []deviation, err error) {
	d := &fileDecoder{file: file, limits: limits}
	return d.decode(data)
}

func (d *fileDecoder) decode(data []byte) (docs []document, deviations []deviation, err error) {
	// A panic in the YAML parser must not end the process.
	defer func() {
		if r := recover(); r != nil {
			err = d.errorf(ReasonInvalid, 0, "parse YAML: %v", r)
		}
	}()
	data = bytes.TrimPrefix(data, bom)
	if first := bytes.TrimLeft(data, " \t\r\n"); len(first) > 0 && first[0] == '{' {
		if ok, err := d.decodeJSON(data); ok || err != nil {
			return d.docs, d.deviations, err
		}
		d.docs, d.number = nil, 0
	}
	err = d.decodeYAML(data)
	return d.docs, d.deviations, err
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

func (d *fileDecoder) document(node *yaml.Node) error {
	d.aliases, d.size = 0, 0
	if node.Kind == yaml.DocumentNode {
		if len(node.Content) != 1 {
			return d.errorf(ReasonInvalid, node.Line, "the document has %d roots, must have 1", len(node.Content))
		}
		node = node.Content[0]
	}
	value, err := d.value(node, 0)
	if err != nil {
		return err
	}
	switch value := value.(type) {
	case nil:
		return nil // An empty document, or one of comments only.
	case map[string]any:
		if len(d.docs) >= d.limits.Manifests {
			return d.errorf(ReasonLimit, node.Line, "more than %d documents", d.limits.Manifests)
		}
		doc := document{content: value, number: d.number, line: node.Line}
		if d.keepNodes {
			doc.node = node
		}
		d.docs = append(d.docs, doc)
		return nil
	default:
		if d.anyRoot {
			return nil
		}
		return d.errorf(ReasonInvalid, node.Line, "the document is a %s, must be a mapping", typeName(value))
	}
}

// value converts a node to the types of encoding/json, with integers as int64.
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
			return nil, d.errorf(ReasonLimit, node.Line, "more than %d alias expansions", d.limits.Aliases)
		}
		return d.value(node.Alias, depth+1)
	default:
		return nil, d.errorf(ReasonInvalid, node.Line, "unknown kind of YAML node")
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
		return nil, d.errorf(ReasonInvalid, node.Line, "number %s can't be represented in JSON; quote it if it is text", node.Value)
	}
	return value, nil
}

// tagged converts a scalar with an explicit tag.
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
		return nil, d.errorf(ReasonInvalid, node.Line, "tag %s isn't supported for this value", node.Tag)
	}
	return value, nil
}

// mapping converts a mapping. The last value of a duplicate key wins, as in CVO.
func (d *fileDecoder) mapping(node *yaml.Node, depth int) (any, error) {
	content := make(map[string]any, len(node.Content)/2)
	var merges []*yaml.Node
	for i := 0; i+1 < len(node.Content); i += 2 {
		keyNode := node.Content[i]
		if keyNode.Tag == "!!merge" && keyNode.Style == 0 {
			d.deviationf(keyNode.Line, "merge key (<<) found; write out the merged content")
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
			d.duplicate(key, keyNode.Line, firstLine(node, keyNode))
		}
	}
	for _, from := range merges {
		if err := d.merge(content, from, depth); err != nil {
			return nil, err
		}
	}
	return content, nil
}

// merge adds the missing keys from a mapping, or from a list of mappings in
// order of precedence (YAML 1.1, merge key type).
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
			return d.errorf(ReasonInvalid, node.Line, "merge key (<<) refers to a %s, must refer to a mapping", typeName(item))
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
		d.deviationf(node.Line, "key %s is a boolean; quote it", node.Value)
		return strconv.FormatBool(value), nil
	case int64:
		return strconv.FormatInt(value, 10), nil
	case float64:
		return strconv.FormatFloat(value, 'g', -1, 32), nil
	default:
		return "", d.errorf(ReasonInvalid, node.Line, "key is a %s, must be a string", typeName(value))
	}
}

// firstLine returns the line of the first key of a mapping that is written as the
// given one, or 0.
func firstLine(mapping, key *yaml.Node) int {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if k := mapping.Content[i]; k != key && k.Value == key.Value {
			return k.Line
		}
	}
	return 0
}

// duplicate reports a key that a mapping has twice.
func (d *fileDecoder) duplicate(key string, line, first int) {
	also := ""
	if first != 0 {
		also = fmt.Sprintf(", also on line %d", first)
	}
	d.deviationf(line, "duplicate key %q in a mapping%s; remove one of them, since only the last value is used", key, also)
	d.deviations[len(d.deviations)-1].duplicate = true
}

func (d *fileDecoder) deviationf(line int, format string, args ...any) {
	d.deviations = append(d.deviations, deviation{file: d.file, number: d.number, line: line, message: fmt.Sprintf(format, args...)})
}

func (d *fileDecoder) errorf(kind string, line int, format string, args ...any) error {
	return &LoadError{Kind: kind, File: d.file, Document: d.number, Line: line, Message: fmt.Sprintf(format, args...)}
}

// yamlLine matches the line number in an error of the parser.
var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntax converts an error of the parser.
func (d *fileDecoder) syntax(err error) error {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = err.Error()[len(m[0]):]
	}
	d.number++
	return d.errorf(ReasonInvalid, line, "%s", text)
}
