// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/payload"
)

// realPayload is the payload of 30 OpenShift operators that lies beside the
// project, or in the directory that LOCKSTEP_SHARED names.
func realPayload(t *testing.T) fs.FS {
	t.Helper()
	shared := os.Getenv("LOCKSTEP_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared")
	}
	file, err := os.Open(filepath.Join(shared, "data", "openshift-payload.tar.gz"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("the real payload isn't here: %v; set LOCKSTEP_SHARED to its directory", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	tree := fstest.MapFS{}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return tree
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(files)
		if err != nil {
			t.Fatal(err)
		}
		if name, inside := strings.CutPrefix(header.Name, "payload/"); inside {
			tree[name] = &fstest.MapFile{Data: content}
		}
	}
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
