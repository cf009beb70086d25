// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"testing"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/taskgraph"
)

func TestTheMixHasTheReferenceSize(t *testing.T) {
	t.Parallel()
	const size = 1000
	objects := Mix("a", size)
	if len(objects) != size {
		t.Errorf("%d objects, want %d", len(objects), size)
	}
	text, err := Documents(objects)
	if err != nil {
		t.Fatal(err)
	}
	if kilo := len(text) / 1000; kilo < 450 || kilo > 680 {
		t.Errorf("%d kB of YAML, want about 565", kilo)
	}
}

func TestMixesOfTwoPrefixesShareNothing(t *testing.T) {
	t.Parallel()
	seen := map[payload.ObjectID]bool{}
	for _, prefix := range []string{"a", "b"} {
		ms, err := Manifests(Mix(prefix, 100))
		if err != nil {
			t.Fatal(err)
		}
		for i := range ms {
			if seen[ms[i].ID] {
				t.Errorf("%s twice", ms[i].ID)
			}
			seen[ms[i].ID] = true
		}
	}
}

func TestTheReleaseResemblesARealOne(t *testing.T) {
	t.Parallel()
	ms, err := ReleaseManifests(Release("a"))
	if err != nil {
		t.Fatal(err)
	}
	got := taskgraph.Build(ms, payload.Updating, taskgraph.Order{Serial: true}).Summary()
	if want := (taskgraph.Summary{Tasks: ReleaseSize, Nodes: 68, Depth: 10, Largest: LargestNode}); got != want {
		t.Errorf("shape %+v, want %+v", got, want)
	}
}

func TestEveryEditableIsOneOfTwentyKinds(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{}
	for _, e := range Editables() {
		o, err := e.Make(0, "edits")
		if err != nil {
			t.Fatal(err)
		}
		ms, err := Manifests([]Object{o})
		if err != nil {
			t.Fatal(err)
		}
		if (ms[0].ID.Namespace == "") != e.ClusterScoped() {
			t.Errorf("%s: namespace %q", e.Resource, ms[0].ID.Namespace)
		}
		kinds[ms[0].ID.Kind] = true
	}
	if len(kinds) != 20 {
		t.Errorf("%d kinds, want 20", len(kinds))
	}
}
