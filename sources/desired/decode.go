// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// decoded is an object, as declared and with defaults.
type decoded struct {
	Object
	completed map[string]any
}

// runtimeAnnotations are run-time annotations that can't be declared. In particular, a commit
// can't accept its own rewind.
func runtimeAnnotations() []string {
	return []string{
		v1alpha1.AnnotationPaused, v1alpha1.AnnotationHold, v1alpha1.AnnotationRerun, v1alpha1.AnnotationResume,
		v1alpha1.AnnotationRequestedAt, v1alpha1.AnnotationAcceptRewind, v1alpha1.AnnotationSource, v1alpha1.AnnotationRevision,
	}
}

// decode decodes one document and checks it on its own.
func (d *Decoder) decode(ctx context.Context, doc document, found *problems) (*decoded, bool) {
	before := len(found.list) + found.cut
	report := func(fieldPath, format string, args ...any) {
		found.add(Problem{File: doc.file, Line: doc.at(fieldPath), Object: title(doc.value), Message: fmt.Sprintf(format, args...)})
	}
	kind, ok := checkKind(doc.value, report)
	if !ok {
		return nil, false
	}
	checkTop(doc.value, report)
	name := checkMeta(doc.value, report)
	schema := d.schemas[kind]
	schema.unknown(doc.value, func(fieldPath, meant string) {
		report(fieldPath, "unknown field %s%s", fieldPath, didYouMean(meant))
	})
	if len(found.list)+found.cut > before {
		return nil, false // the schema would report it again
	}
	object := runtime.DeepCopyJSON(doc.value)
	meta, _ := object["metadata"].(map[string]any)
	meta["namespace"] = v1alpha1.Namespace
	completed := runtime.DeepCopyJSON(object)
	schema.complete(completed)
	for _, e := range schema.validate(ctx, completed) {
		report(e.Field, "%s: %s", e.Field, e.ErrorBody())
	}
	if len(found.list)+found.cut > before {
		return nil, false
	}
	return &decoded{
		Object: Object{
			Kind: kind, Name: name, File: doc.file, Line: doc.at("kind"),
			Manifest: &unstructured.Unstructured{Object: object},
		},
		completed: completed,
	}, true
}

func title(object map[string]any) string {
	kind, _ := object["kind"].(string)
	name := nameOf(object)
	if kind == "" || name == "" {
		return ""
	}
	return kind + "/" + name
}

type reporter func(fieldPath, format string, args ...any)

// checkKind returns the kind, which must be a declared one.
func checkKind(object map[string]any, report reporter) (string, bool) {
	apiVersion, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	want := v1alpha1.GroupVersion().String()
	if apiVersion == want && slices.Contains(kinds(), kind) {
		return kind, true
	}
	list := strings.Join(kinds(), ", ")
	switch {
	case apiVersion == "" || kind == "":
		report("", "has no apiVersion or kind; want apiVersion: %s and one of %s", want, list)
	case kind == v1alpha1.KindHost && apiVersion == want:
		report("kind", "a Host can't be declared in Git; the reconciler creates it from its Node")
	case strings.HasPrefix(apiVersion, v1alpha1.Group+"/") && apiVersion != want:
		report("apiVersion", "unknown apiVersion %q; want %s", apiVersion, want)
	case apiVersion == want:
		report("kind", "unknown kind %q; want one of %s%s", kind, list, didYouMean(nearest(kind, kinds())))
	default:
		report("kind", "%s of %s can't be declared, only %s; add it to the payload of a release", kind, apiVersion, list)
	}
	return "", false
}

// checkTop rejects fields other than apiVersion, kind, metadata and spec.
func checkTop(object map[string]any, report reporter) {
	want := []string{"apiVersion", "kind", "metadata", "spec"}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		switch {
		case slices.Contains(want, key):
		case key == "status":
			report(key, "status is set by the reconciler; remove it")
		default:
			report(key, "unknown field %s%s", key, didYouMean(nearest(key, want)))
		}
	}
	if _, ok := object["spec"].(map[string]any); !ok {
		report("", "has no spec")
	}
}

// checkMeta checks the metadata and returns the name.
func checkMeta(object map[string]any, report reporter) string {
	meta, ok := object["metadata"].(map[string]any)
	if !ok {
		report("", "has no metadata.name")
		return ""
	}
	want := []string{"name", "namespace", "labels", "annotations"}
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		if !slices.Contains(want, key) {
			report("metadata."+key, "metadata.%s can't be declared; want only %s%s", key, strings.Join(want, ", "), didYouMean(nearest(key, want)))
		}
	}
	if ns, has := meta["namespace"]; has && ns != v1alpha1.Namespace {
		report("metadata.namespace", "namespace %q: all declared objects are in %s; remove the field", ns, v1alpha1.Namespace)
	}
	for _, key := range []string{"labels", "annotations"} {
		checkStrings(meta, key, report)
	}
	name, _ := meta["name"].(string)
	if !validName(name) {
		report("metadata.name", "metadata.name %q is invalid; use at most 253 lower-case letters, digits, dashes and dots", name)
	}
	return name
}

func checkStrings(meta map[string]any, key string, report reporter) {
	value, has := meta[key]
	if !has || value == nil {
		return
	}
	m, ok := value.(map[string]any)
	if !ok {
		report("metadata."+key, "metadata.%s must be a map of strings", key)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if _, ok := m[k].(string); !ok {
			report("metadata."+key+"["+k+"]", "metadata.%s[%s] must be a string; quote it", key, k)
		}
		if key == "annotations" && slices.Contains(runtimeAnnotations(), k) {
			report("metadata."+key+"["+k+"]", "annotation %s can't be declared; set it with kubectl annotate or the lockstep command", k)
		}
	}
}

func validName(s string) bool {
	if s == "" || len(s) > 253 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || part[0] == '-' || part[len(part)-1] == '-' {
			return false
		}
	}
	return true
}
