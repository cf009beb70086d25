// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-dev/lockstep/payload"
)

// ReleaseSize is the number of tasks, as in an OpenShift release.
const ReleaseSize = 862

// releaseLevels are the run levels of the release and the number of components
// in each: 68 nodes, 77 with barriers.
func releaseLevels() (levels, widths []int) {
	return []int{0, 3, 10, 12, 20, 25, 30, 50, 80, 90}, []int{1, 7, 2, 2, 2, 2, 3, 25, 2, 22}
}

// releaseCustom are the kinds of the release's CRDs, and the number of objects
// of each.
func releaseCustom() []share {
	return []share{
		{"CredentialsRequest", 45},
		{"ServiceMonitor", 41},
		{"ClusterOperator", 33},
		{"PrometheusRule", 24},
		{"ConsoleQuickStart", 21},
		{"SecurityConstraint", 11},
		{"ImageStream", 11},
	}
}

// releaseKinds are the built-in kinds except foundations. ConfigMaps stand for
// 52 objects of rare kinds and for 11 FlowSchemas, which would change the
// server under test.
func releaseKinds() []share {
	return []share{
		{"RoleBinding", 86},
		{"Role", 76},
		{"ClusterRole", 70},
		{"ConfigMap", 62 + 52 + 11},
		{"ClusterRoleBinding", 55},
		{"Service", 43},
		{"ServiceAccount", 42},
		{"Deployment", 34},
	}
}

// Placed is an object and its place in a release.
type Placed struct {
	Object
	Level     int
	Component string
}

// Release returns a release with the tasks, kinds, run levels and components
// of an OpenShift release. The first component has its namespaces and 32 CRDs
// and is the largest; those of the second run level have the other CRDs.
func Release(prefix string) []Placed {
	g := generator{prefix: prefix, namespaces: 42}
	var foundations, others []Object
	for i := range 42 {
		foundations = append(foundations, g.make("Namespace", i))
	}
	group := prefix + ".example.com"
	custom := releaseCustom()
	for i := range 103 {
		kind := fmt.Sprintf("Thing%d", i)
		if i < len(custom) {
			kind = custom[i].kind
		}
		foundations = append(foundations, g.crd(kind, group))
	}
	for _, s := range releaseKinds() {
		for i := range s.count {
			others = append(others, g.make(s.kind, i))
		}
	}
	for _, s := range custom {
		for i := range s.count {
			o := g.head(group+"/v1", s.kind, i, false)
			o["spec"] = map[string]any{"title": g.name(i), "size": int64(i), "items": []any{"a", "b"}}
			others = append(others, Object{Content: o, Resource: strings.ToLower(s.kind) + "s"})
		}
	}
	return place(foundations, others)
}

// LargestNode is the number of tasks of the release's largest node.
const LargestNode = 74

func place(foundations, others []Object) []Placed {
	levels, widths := releaseLevels()
	out := make([]Placed, 0, ReleaseSize)
	for i, o := range foundations {
		level, component := levels[0], "base"
		if i >= LargestNode {
			level, component = levels[1], fmt.Sprintf("definitions%d", i%widths[1])
		}
		out = append(out, Placed{o, level, component})
	}
	// The rest is distributed over the components of the other run levels, so
	// that each has some of every kind.
	var places []Placed
	for l := 2; l < len(levels); l++ {
		for c := range widths[l] {
			places = append(places, Placed{Level: levels[l], Component: fmt.Sprintf("operator%d", c)})
		}
	}
	for i, o := range others {
		p := places[i%len(places)]
		p.Object = o
		out = append(out, p)
	}
	return out
}

// ReleaseManifests returns the release as the engine's input.
func ReleaseManifests(ps []Placed) ([]payload.Manifest, error) {
	out := make([]payload.Manifest, 0, len(ps))
	for _, p := range ps {
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: p.Content})
		if err != nil {
			return nil, fmt.Errorf("generated release: %w", err)
		}
		m.RunLevel, m.Component = p.Level, p.Component
		out = append(out, m)
	}
	return out, nil
}
