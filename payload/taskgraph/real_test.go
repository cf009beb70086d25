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
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/test/openshift"
)

// realPayload returns the payload of 30 OpenShift operators in the directory
// LOCKSTEP_SHARED, by default next to the repository.
func realPayload(t *testing.T) fs.FS {
	t.Helper()
	tree, _, err := openshift.Payload(filepath.Join("..", ".."))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("real payload not found: %v; set LOCKSTEP_SHARED to its directory", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// CVO has the same nodes, barriers between run levels and largest node.
func TestTheGraphOfARealPayloadMatchesCVO(t *testing.T) {
	p, err := payload.LoadUnverified(realPayload(t), payload.LoadOptions{Selection: payload.Selection{Profile: "self-managed-high-availability"}})
	if err != nil {
		t.Fatal(err)
	}
	g := Build(p.Manifests, payload.Updating, Order{Serial: p.CVO})
	if diff := cmp.Diff(Summary{Tasks: 859, Nodes: 80, Depth: 14, Largest: 86}, g.Summary()); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	if barriers := len(g.nodes) - g.Summary().Nodes; barriers != 4 {
		t.Errorf("%d barriers, want 4", barriers)
	}
}

// CVO applies it in this order to clusters that have its namespaces and CRDs.
func TestTheOrderOfARealPayloadWorks(t *testing.T) {
	p, err := payload.LoadUnverified(realPayload(t), payload.LoadOptions{Selection: payload.Selection{Profile: "self-managed-high-availability"}})
	if err != nil {
		t.Fatal(err)
	}
	if !p.CVO {
		t.Error("the payload isn't in CVO mode")
	}
	installed := func(m *payload.Manifest) bool {
		return m.ID.GroupKind() == kinds.Namespace || m.ID.GroupKind() == kinds.CustomResourceDefinition
	}
	for _, state := range allStates {
		for _, exists := range []func(*payload.Manifest) bool{nil, installed} {
			for _, problem := range CheckOrder(p.Manifests, state, p.CVO, exists) {
				t.Errorf("%s: %s", state, problem.Message)
			}
		}
	}
}
