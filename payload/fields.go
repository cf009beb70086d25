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

// builtIn knows the kinds of Kubernetes' stable API groups, as they are in the
// version that this program is linked with. Their definitions come from the
// server's types, so a field that they lack is a mistake or newer than we are.
var builtIn = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, appsv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme,
		batchv1.AddToScheme, certificatesv1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme,
		eventsv1.AddToScheme, flowcontrolv1.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme,
		rbacv1.AddToScheme, resourcev1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // Two types of one name in Kubernetes' own packages.
		}
	}
	return scheme
})

// shape is what of a Go type is seen in JSON. All of it nil: anything may
// stand there.
type shape struct {
	// fields are a struct's, by name.
	fields map[string]*shape
	// item is what a list or a mapping of free keys holds.
	item *shape
}

func (sh *shape) isOpaque() bool { return sh.fields == nil && sh.item == nil }

// shapes are made once for each type; they refer to one another.
type shapes struct {
	mu   sync.Mutex
	made map[reflect.Type]*shape
}

var builtInShapes = shapes{made: map[reflect.Type]*shape{}}

// of returns the shape of a kind, nil where it isn't a built-in one.
func (s *shapes) of(gvk schema.GroupVersionKind) *shape {
	t, known := builtIn().AllKnownTypes()[gvk]
	if !known {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.make(t)
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func (s *shapes) make(t reflect.Type) *shape {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if sh, ok := s.made[t]; ok {
		return sh
	}
	sh := &shape{}
	s.made[t] = sh // Before its parts: types may hold themselves.
	switch {
	case reflect.PointerTo(t).Implements(unmarshaler):
		// What it reads is its own affair, such as a quantity.
	case t.Kind() == reflect.Struct:
		sh.fields = map[string]*shape{}
		s.addFields(sh, t)
	case t.Kind() == reflect.Map, t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		sh.item = s.make(t.Elem())
	}
	return sh
}

// addFields adds those of a struct and of the structs that are inlined in it.
func (s *shapes) addFields(sh *shape, t reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name != "":
			sh.fields[name] = s.make(f.Type)
		case f.Anonymous:
			inlined := f.Type
			if inlined.Kind() == reflect.Pointer {
				inlined = inlined.Elem()
			}
			s.addFields(sh, inlined)
		default:
			sh.fields[f.Name] = s.make(f.Type)
		}
	}
}

// unknownFields looks for fields that an object's kind doesn't have, and
// removes them if drop is set.
type unknownFields struct {
	drop bool
	// path leads to where the search is: a key, or an index in brackets.
	path  []string
	found []string
}

// maxUnknown bounds the fields that are named of one document.
const maxUnknown = 5

// unknownIn returns the fields that the kind doesn't have as ".spec.x[0].y", at
// most maxUnknown of total. It removes them if drop is set.
func unknownIn(gvk schema.GroupVersionKind, content map[string]any, drop bool) (found []string, total int) {
	sh := builtInShapes.of(gvk)
	if sh == nil {
		return nil, 0
	}
	u := unknownFields{drop: drop, path: make([]string, 0, 16)}
	u.search(sh, content)
	slices.Sort(u.found)
	return u.found[:min(len(u.found), maxUnknown)], len(u.found)
}

func (u *unknownFields) search(sh *shape, value any) {
	switch value := value.(type) {
	case map[string]any:
		if sh.fields != nil {
			u.searchFields(sh, value)
			return
		}
		if sh.item == nil || sh.item.isOpaque() {
			return
		}
		for key, item := range value {
			u.at(key, sh.item, item)
		}
	case []any:
		if sh.item == nil || sh.item.isOpaque() {
			return
		}
		for i, item := range value {
			u.at(strconv.Itoa(i), sh.item, item)
		}
	}
}

func (u *unknownFields) searchFields(sh *shape, content map[string]any) {
	var lacking []string
	for key, value := range content {
		if field := sh.fields[key]; field == nil {
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

func (u *unknownFields) at(key string, sh *shape, value any) {
	u.path = append(u.path, key)
	u.search(sh, value)
	u.path = u.path[:len(u.path)-1]
}

// pathOf writes a path as people read it.
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
