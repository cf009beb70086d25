// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// SourceFile is a decoded file of a release's source, before the build.
type SourceFile struct {
	// Objects are the objects in order; lists are expanded.
	Objects []SourceObject
	// Clean is true if the file has only objects and v1 Lists: no byte-order mark,
	// empty document or list of one kind, which older programs don't accept.
	Clean bool
	// Inferred is true if a list provided the kind of an item. Kustomize doesn't
	// accept such lists.
	Inferred bool
}

// SourceObject is an object of a source file.
type SourceObject struct {
	// Content has the types of encoding/json, with integers as int64.
	Content map[string]any
	// File is the path in the source.
	File string
	// Document counts from 1 within the file; Line is the first line of the
	// object.
	Document, Line int
	// node is the object's YAML; nil in JSON files.
	node *yaml.Node
}

// DecodeSource decodes a file as Load does, or as kustomize does if it is rendered:
// kustomize resolves merge keys, and only duplicate keys are rejected. The error
// lists all problems of the file, each a *LoadError.
func DecodeSource(file string, data []byte, rendered bool) (SourceFile, error) {
	d := &fileDecoder{file: file, limits: DefaultLimits(), keepNodes: true}
	docs, deviations, err := d.decode(data)
	if err != nil {
		return SourceFile{}, err
	}
	var problems Problems
	for _, o := range deviations {
		if rendered && !o.duplicate {
			continue
		}
		problems.Add(&LoadError{Kind: ReasonInvalid, File: o.file, Document: o.number, Line: o.line, Message: o.message})
	}
	out := SourceFile{Clean: d.number == len(docs) && !bytes.HasPrefix(data, bom)}
	for i := range docs {
		doc := &docs[i]
		kind, _ := doc.content["kind"].(string)
		items := expandList(doc.content)
		listed := len(items) != 1 || len(items[0].path) > 0
		out.Clean = out.Clean && (!listed || kind == "List" && len(items) > 0)
		for _, item := range items {
			out.Inferred = out.Inferred || item.inferred
			o := SourceObject{Content: item.content, File: file, Document: doc.number, Line: doc.line, node: itemNode(doc.node, item.path)}
			if o.node != nil {
				o.Line = o.node.Line
			}
			out.Objects = append(out.Objects, o)
		}
	}
	return out, problems.Err()
}

// CheckKeys rejects broken YAML and duplicate keys in a file of any documents,
// such as a patch.
func CheckKeys(file string, data []byte) error {
	d := &fileDecoder{file: file, limits: DefaultLimits(), anyRoot: true}
	_, deviations, err := d.decode(data)
	if err != nil {
		return err
	}
	var problems Problems
	for _, o := range deviations {
		if o.duplicate {
			problems.Add(&LoadError{Kind: ReasonInvalid, File: o.file, Document: o.number, Line: o.line, Message: o.message})
		}
	}
	return problems.Err()
}

// itemNode returns the node of an item in nested lists, or nil.
func itemNode(node *yaml.Node, path []int) *yaml.Node {
	for _, i := range path {
		if node = childNode(childNode(node, "items"), strconv.Itoa(i)); node == nil {
			return nil
		}
	}
	return node
}

// childNode returns the value of a key or index, or nil. As in the decoder, the
// last value of a duplicate key is used.
func childNode(node *yaml.Node, key string) *yaml.Node {
	for node != nil && node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node == nil {
		return nil
	}
	switch node.Kind {
	case yaml.MappingNode:
		for i := len(node.Content) - 2; i >= 0; i -= 2 {
			if node.Content[i].Value == key {
				return node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i]
		}
	default: // A scalar has no children.
	}
	return nil
}

// LineOf returns the line of the deepest existing field on the path of keys and
// indexes.
func (o *SourceObject) LineOf(path ...string) int {
	line, node := o.Line, o.node
	for _, key := range path {
		if node = childNode(node, key); node == nil {
			break
		}
		line = node.Line
	}
	return line
}

// MoveTo gives a rendered object the position of its source. Without a source,
// its line is unknown.
func (o *SourceObject) MoveTo(src *SourceObject) {
	o.Document, o.Line, o.node = 0, 0, nil
	if src != nil {
		o.File, o.Document, o.Line, o.node = src.File, src.Document, src.Line, src.node
	}
}

// IsManifest reports whether the content is meant to be an object: other YAML and
// JSON files, such as values of a chart, have none of these fields.
func (o *SourceObject) IsManifest() bool {
	for _, key := range [...]string{"apiVersion", "kind", "metadata"} {
		if _, exists := o.Content[key]; exists {
			return true
		}
	}
	return false
}

// Errorf returns an error at the field with the path.
func (o *SourceObject) Errorf(path []string, format string, args ...any) *LoadError {
	return &LoadError{Kind: ReasonInvalid, File: o.File, Document: o.Document, Line: o.LineOf(path...), Message: fmt.Sprintf(format, args...)}
}

// FieldErrorf returns an error about the field with the path, after the names of
// the object and the field: "ConfigMap web/a: data.port is …".
func (o *SourceObject) FieldErrorf(path []string, format string, args ...any) *LoadError {
	message := strings.TrimPrefix(pathOf(path), ".") + " " + fmt.Sprintf(format, args...)
	if id := o.ID(); id.Kind != "" && id.Name != "" {
		message = id.String() + ": " + message
	}
	return o.Errorf(path, "%s", message)
}

// ID returns the object's identity, as far as it is valid.
func (o *SourceObject) ID() ObjectID {
	group, kind := groupKind(o.Content)
	metadata, _ := o.Content["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	namespace, _ := metadata["namespace"].(string)
	return ObjectID{Group: group, Kind: kind, Namespace: namespace, Name: name}
}
