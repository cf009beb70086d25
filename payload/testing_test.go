// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"errors"
	"io/fs"
	"testing"
	"testing/fstest"
)

const testMetadata = `{"kind":"cincinnati-metadata-v0","name":"platform","version":"1.4.2"}`

// testTree returns a payload with the given files in release-manifests.
func testTree(files map[string]string) fs.FS {
	tree := fstest.MapFS{
		"release-manifests/release-metadata": {Data: []byte(testMetadata)},
	}
	for name, data := range files {
		tree["release-manifests/"+name] = &fstest.MapFile{Data: []byte(data)}
	}
	return tree
}

// loadTree loads the files as product platform 1.4.2.
func loadTree(t *testing.T, files map[string]string, opts LoadOptions) (*Payload, error) {
	t.Helper()
	return load(&expected{"platform", "1.4.2"}, testTree(files), opts)
}

// refusal returns err as a LoadError.
func refusal(t *testing.T, err error) *LoadError {
	t.Helper()
	var e *LoadError
	if !errors.As(err, &e) {
		t.Fatalf("error is %v, want a *LoadError", err)
	}
	return e
}
