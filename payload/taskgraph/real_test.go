// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/test/openshift"
)

// realPayload is the payload of 30 OpenShift operators that lies beside the
// project, or in the directory that LOCKSTEP_SHARED names.
func realPayload(t *testing.T) fs.FS {
	t.Helper()
	tree, _, err := openshift.Payload(filepath.Join("..", ".."))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the real payload isn't here: %v; set LOCKSTEP_SHARED to its directory", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// The nodes, the barriers between wide levels and the largest node are those
// that CVO makes of the same payload.
func TestARealPayloadHasTheShapeThatCVOGivesIt(t *testing.T) {
	p, err := payload.LoadUnverified(realPayload(t), payload.LoadOptions{Selection: payload.Selection{Profile: "self-managed-high-availability"}})
	if err != nil {
		t.Fatal(err)
	}
	g := Build(p.Manifests, payload.Updating, Order{})
	if diff := cmp.Diff(Shape{Tasks: 859, Nodes: 80, Depth: 14, Largest: 86}, g.Shape()); diff != "" {
		t.Errorf("shape (-want +got):\n%s", diff)
	}
	if barriers := len(g.nodes) - g.Shape().Nodes; barriers != 4 {
		t.Errorf("%d barriers, want 4", barriers)
	}
}
