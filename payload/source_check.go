// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// CheckSource checks an object before the build: its kind, and for Kubernetes'
// own kinds the types of all fields. The errors are
// *LoadErrors with the line of the field. Unknown fields aren't checked, as in
// Check, which warns of them.
func CheckSource(o *SourceObject) []error {
	apiVersion, kind, err := typeOf(o)
	if err != nil {
		return []error{err}
	}
	gv, parseErr := schema.ParseGroupVersion(apiVersion)
	if parseErr != nil {
		return []error{o.Errorf([]string{"apiVersion"}, "apiVersion %q is invalid, must be group/version", apiVersion)}
	}
	if message := checkKind(gv, kind); message != "" {
		return []error{o.Errorf([]string{"kind"}, "%s", message)}
	}
	gvk := gv.WithKind(kind)
	if ts := builtInSchemas.of(gvk); ts != nil {
		return append(checkTypes(o, ts, false), checkDataKeys(o, gvk.GroupKind())...)
	}
	if gvk == apiextensionsv1.SchemeGroupVersion.WithKind(kinds.CustomResourceDefinition.Kind) {
		return checkTypes(o, builtInSchemas.ofType(reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]()), false)
	}
	metadata := &typeSchema{fields: map[string]*typeSchema{"metadata": builtInSchemas.ofType(reflect.TypeFor[metav1.ObjectMeta]())}}
	return checkTypes(o, metadata, false)
}

// CheckSourceAs checks all fields of an object against a Go type with JSON tags:
// their types, and that the type has them.
func CheckSourceAs(o *SourceObject, t reflect.Type) []error {
	return checkTypes(o, builtInSchemas.ofType(t), true)
}

// typeOf returns apiVersion and kind of an object, which must have a name too.
func typeOf(o *SourceObject) (apiVersion, kind string, err error) {
	for field, dst := range map[string]*string{"apiVersion": &apiVersion, "kind": &kind} {
		if *dst, err = stringField(o.Content, field); err != nil {
			return "", "", o.Errorf([]string{field}, "%s", err)
		}
	}
	if apiVersion == "" || kind == "" {
		return "", "", o.Errorf(nil, "the document has no apiVersion or kind; add them, or move the file if it isn't a manifest")
	}
	metadata, isMap := o.Content["metadata"].(map[string]any)
	if !isMap && o.Content["metadata"] != nil {
		return "", "", o.Errorf([]string{"metadata"}, "metadata is a %s, must be a mapping", typeName(o.Content["metadata"]))
	}
	switch name := metadata["name"].(type) {
	case string:
		if name != "" {
			return apiVersion, kind, nil
		}
	case nil:
	default:
		return "", "", o.Errorf([]string{"metadata", "name"}, "metadata.name is a %s, must be a string; quote it", typeName(name))
	}
	return "", "", o.Errorf([]string{"metadata"}, "%s has no metadata.name; generateName isn't supported", kind)
}

// checkKind returns why no API server has the kind, or "". Kinds of Kubernetes
// that aren't similar to a known one may be newer than this program.
func checkKind(gv schema.GroupVersion, kind string) string {
	if known := kinds.ScopeOf(gv.WithKind(kind).GroupKind()); known != kinds.UnknownScope {
		return ""
	}
	for _, k := range kinds.InGroup(gv.Group) {
		if similar(kind, k) {
			return fmt.Sprintf("unknown kind %q in %s; did you mean %s?", kind, gv, k)
		}
	}
	if len(validation.IsDNS1035Label(strings.ToLower(kind))) > 0 {
		return fmt.Sprintf("kind %q is invalid: must be letters, digits and '-'", kind)
	}
	if gv.Group == "" {
		if other := groupOf(kind); other != "" {
			return fmt.Sprintf("%s isn't in %s; did you mean apiVersion: %s?", kind, gv, other)
		}
	}
	return ""
}

// checkDataKeys returns the keys that a ConfigMap or Secret can't have. Generators
// of kustomize make keys of file names.
func checkDataKeys(o *SourceObject, gk schema.GroupKind) (found []error) {
	if gk != kinds.Secret && gk != (schema.GroupKind{Kind: "ConfigMap"}) {
		return nil
	}
	for _, field := range []string{"data", "binaryData", "stringData"} {
		content, _ := o.Content[field].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(content)) {
			if len(validation.IsConfigMapKey(key)) > 0 && len(found) < maxTypeErrors {
				found = append(found, o.FieldErrorf([]string{field}, "has the key %q, must have only letters, digits, '-', '_' and '.' in keys; in a kustomization, write KEY=FILE", key))
			}
		}
	}
	return found
}

// groupOf returns the apiVersion of a stable built-in kind, or "".
func groupOf(kind string) string {
	var found []string
	for gvk := range builtIn().AllKnownTypes() {
		if gvk.Kind == kind && kinds.ScopeOf(gvk.GroupKind()) != kinds.UnknownScope {
			found = append(found, gvk.GroupVersion().String())
		}
	}
	slices.Sort(found)
	return strings.Join(found, " or ")
}

// similar reports whether a kind was probably meant: it has the same letters, or
// one letter more, less or other.
func similar(written, kind string) bool {
	fold := func(s string) string {
		return strings.ToLower(strings.NewReplacer(" ", "", "-", "", "_", "", ".", "").Replace(s))
	}
	a, b := fold(written), fold(kind)
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	start := 0
	for start < len(a) && a[start] == b[start] {
		start++
	}
	end := 0
	for end < len(a)-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	return len(a)-start-end <= 1 && len(b)-start-end <= 1
}

// ofType returns the schema of a Go type.
func (s *schemaCache) ofType(t reflect.Type) *typeSchema {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forType(t)
}

// typeCheck compares a value with a schema.
type typeCheck struct {
	o      *SourceObject
	strict bool // reports unknown fields
	path   []string
	found  []*LoadError
}

// maxTypeErrors limits the errors of one object.
const maxTypeErrors = 20

func checkTypes(o *SourceObject, ts *typeSchema, strict bool) []error {
	c := typeCheck{o: o, strict: strict}
	c.check(ts, o.Content)
	slices.SortStableFunc(c.found, func(a, b *LoadError) int { return cmp.Compare(a.Line, b.Line) })
	out := make([]error, len(c.found))
	for i := range c.found {
		out[i] = c.found[i]
	}
	return out
}

func (c *typeCheck) errorf(format string, args ...any) {
	if len(c.found) < maxTypeErrors {
		c.found = append(c.found, c.o.FieldErrorf(c.path, format, args...))
	}
}

func (c *typeCheck) at(key string, ts *typeSchema, value any) {
	c.path = append(c.path, key)
	c.check(ts, value)
	c.path = c.path[:len(c.path)-1]
}

func (c *typeCheck) check(ts *typeSchema, value any) {
	if value == nil || len(c.found) >= maxTypeErrors {
		return
	}
	switch {
	case ts.decoded != nil:
		c.decode(ts.decoded, value)
	case ts.fields != nil:
		if content, ok := value.(map[string]any); ok {
			c.fields(ts, content)
			return
		}
		c.errorf("is a %s, must be a mapping", typeName(value))
	case ts.item != nil && ts.scalar == reflect.Map:
		content, ok := value.(map[string]any)
		if !ok {
			c.errorf("is a %s, must be a mapping", typeName(value))
			return
		}
		for _, key := range slices.Sorted(maps.Keys(content)) {
			c.at(key, ts.item, content[key])
		}
	case ts.item != nil:
		list, ok := value.([]any)
		if !ok {
			c.errorf("is a %s, must be a list", typeName(value))
			return
		}
		for i, item := range list {
			c.at(strconv.Itoa(i), ts.item, item)
		}
	default:
		c.scalar(ts.scalar, value)
	}
}

func (c *typeCheck) fields(ts *typeSchema, content map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(content)) {
		if field := ts.fields[key]; field != nil {
			c.at(key, field, content[key])
			continue
		}
		if !c.strict {
			continue
		}
		c.path = append(c.path, key)
		hint := ""
		for _, name := range slices.Sorted(maps.Keys(ts.fields)) {
			if similar(key, name) {
				hint = "; did you mean " + name + "?"
			}
		}
		c.errorf("is an unknown field%s", hint)
		c.path = c.path[:len(c.path)-1]
	}
}

// decode checks a value whose type decodes itself, such as a quantity. The value
// isn't part of the message, since it may be secret.
func (c *typeCheck) decode(t reflect.Type, value any) {
	raw, err := appendCanonical(nil, value)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if err != nil {
		c.errorf("is a %s that isn't a valid %s", typeName(value), t.Name())
	}
}

// bytesKind marks base64 in typeSchema.scalar.
const bytesKind = reflect.Slice

func (c *typeCheck) scalar(want reflect.Kind, value any) {
	switch want {
	case reflect.String:
		if _, ok := value.(string); !ok {
			hint := ""
			if got := typeName(value); got == "number" || got == "boolean" {
				hint = "; quote it"
			}
			c.errorf("is a %s, must be a string%s", typeName(value), hint)
		}
	case bytesKind:
		text, ok := value.(string)
		if !ok {
			c.errorf("is a %s, must be base64 in a string", typeName(value))
			return
		}
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			hint := ""
			if c.o.ID().GroupKind() == kinds.Secret {
				hint = ", or write plain text in stringData"
			}
			c.errorf("isn't base64; encode it%s", hint)
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			hint := ""
			if text, isText := value.(string); isText && (text == "true" || text == "false") {
				hint = "; remove the quotes"
			}
			c.errorf("is a %s, must be true or false%s", typeName(value), hint)
		}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		c.number(want, value)
	default: // Any content, such as an interface.
	}
}

func (c *typeCheck) number(want reflect.Kind, value any) {
	whole := want != reflect.Float32 && want != reflect.Float64
	switch n := value.(type) {
	case int64:
		if want == reflect.Int32 && (n < math.MinInt32 || n > math.MaxInt32) {
			c.errorf("is %d, must be a number of 32 bits", n)
		}
	case float64:
		if whole {
			c.errorf("is %v, must be an integer", n)
		}
	default:
		hint := ""
		if text, ok := value.(string); ok {
			if _, err := strconv.ParseFloat(text, 64); err == nil {
				hint = "; remove the quotes"
			}
		}
		c.errorf("is a %s, must be a number%s", typeName(value), hint)
	}
}
