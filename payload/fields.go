// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// builtIn has the kinds of Kubernetes' stable API groups in the linked version.
// The types are those of the API server: a field that they lack is a mistake or
// newer than this program.
var builtIn = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, appsv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme,
		batchv1.AddToScheme, certificatesv1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme,
		eventsv1.AddToScheme, flowcontrolv1.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme,
		rbacv1.AddToScheme, resourcev1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // Two Kubernetes types with the same name: a programming error.
		}
	}
	return scheme
})

// typeSchema describes the JSON of a Go type. The zero value allows any content.
type typeSchema struct {
	// fields of a struct, by name.
	fields map[string]*typeSchema
	// item of a list, or of a mapping with arbitrary keys.
	item *typeSchema
	// scalar is the kind of other values: reflect.Slice for base64, reflect.Map
	// for a mapping with items, reflect.Invalid for any content.
	scalar reflect.Kind
	// decoded is a type that decodes itself.
	decoded reflect.Type
}

func (ts *typeSchema) isOpaque() bool { return ts.fields == nil && ts.item == nil }

// schemaCache creates the schema of each type once. It is safe for concurrent
// use.
type schemaCache struct {
	mu     sync.Mutex
	byType map[reflect.Type]*typeSchema
}

var builtInSchemas = schemaCache{byType: map[reflect.Type]*typeSchema{}}

// of returns the schema of a built-in kind, nil for other kinds.
func (s *schemaCache) of(gvk schema.GroupVersionKind) *typeSchema {
	t, known := builtIn().AllKnownTypes()[gvk]
	if !known {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forType(t)
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func (s *schemaCache) forType(t reflect.Type) *typeSchema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if ts, ok := s.byType[t]; ok {
		return ts
	}
	ts := &typeSchema{}
	s.byType[t] = ts // Stored before its parts, since types may be recursive.
	switch {
	case reflect.PointerTo(t).Implements(unmarshaler):
		ts.decoded = t // For example, a quantity.
	case t.Kind() == reflect.Struct:
		ts.fields = map[string]*typeSchema{}
		s.addFields(ts, t)
	case t.Kind() == reflect.Map, t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		ts.item = s.forType(t.Elem())
		ts.scalar = t.Kind()
	default:
		ts.scalar = t.Kind()
	}
	return ts
}

// addFields adds the fields of a struct and of its inlined structs.
func (s *schemaCache) addFields(ts *typeSchema, t reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name != "":
			ts.fields[name] = s.forType(f.Type)
		case f.Anonymous:
			inlined := f.Type
			if inlined.Kind() == reflect.Pointer {
				inlined = inlined.Elem()
			}
			s.addFields(ts, inlined)
		default:
			ts.fields[f.Name] = s.forType(f.Type)
		}
	}
}

// unknownFields searches an object for fields that its kind doesn't have, and
// removes them if drop is set.
type unknownFields struct {
	drop bool
	// path is the current position: keys and indexes.
	path  []string
	found []string
}

// maxUnknown limits the unknown fields that are named per document.
const maxUnknown = 5

// unknownIn returns the fields that the kind doesn't have, such as
// ".spec.x[0].y": at most maxUnknown, and their total number. It removes all of
// them if drop is set.
func unknownIn(gvk schema.GroupVersionKind, content map[string]any, drop bool) (found []string, total int) {
	ts := builtInSchemas.of(gvk)
	if ts == nil {
		return nil, 0
	}
	u := unknownFields{drop: drop, path: make([]string, 0, 16)}
	u.search(ts, content)
	slices.Sort(u.found)
	return u.found[:min(len(u.found), maxUnknown)], len(u.found)
}

func (u *unknownFields) search(ts *typeSchema, value any) {
	switch value := value.(type) {
	case map[string]any:
		if ts.fields != nil {
			u.searchFields(ts, value)
			return
		}
		if ts.item == nil || ts.item.isOpaque() {
			return
		}
		for key, item := range value {
			u.at(key, ts.item, item)
		}
	case []any:
		if ts.item == nil || ts.item.isOpaque() {
			return
		}
		for i, item := range value {
			u.at(strconv.Itoa(i), ts.item, item)
		}
	}
}

func (u *unknownFields) searchFields(ts *typeSchema, content map[string]any) {
	var lacking []string
	for key, value := range content {
		if field := ts.fields[key]; field == nil {
			lacking = append(lacking, key)
		} else {
			u.at(key, field, value)
		}
	}
	for _, key := range lacking {
		u.found = append(u.found, pathOf(append(u.path, key)))
		if u.drop {
			delete(content, key)
		}
	}
}

func (u *unknownFields) at(key string, ts *typeSchema, value any) {
	u.path = append(u.path, key)
	u.search(ts, value)
	u.path = u.path[:len(u.path)-1]
}

// pathOf formats a path for display.
func pathOf(path []string) string {
	var b strings.Builder
	for _, key := range path {
		if key != "" && strings.Trim(key, "0123456789") == "" {
			b.WriteString("[" + key + "]")
			continue
		}
		b.WriteString("." + key)
	}
	return b.String()
}
