// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package openshift reads a real payload, that of 30 OpenShift operators. It
// isn't part of this repository and may be missing.
package openshift

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing/fstest"
)

// Payload reads data/openshift-payload.tar.gz from the directory in
// LOCKSTEP_SHARED, or else from the directory shared beside the project's
// root. size is the size of its YAML and JSON in bytes. A missing payload is
// an fs.ErrNotExist.
func Payload(root string) (tree fstest.MapFS, size int64, err error) {
	dir := cmp.Or(os.Getenv("LOCKSTEP_SHARED"), filepath.Join(root, "..", "shared"))
	data, err := os.ReadFile(filepath.Join(dir, "data", "openshift-payload.tar.gz")) //nolint:gosec // who runs this names the directory
	if err != nil {
		return nil, 0, fmt.Errorf("read the real payload: %w", err)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, 0, fmt.Errorf("read the real payload: %w", err)
	}
	tree = fstest.MapFS{}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return tree, size, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read the real payload: %w", err)
		}
		name, inside := strings.CutPrefix(header.Name, "payload/")
		if !inside || header.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return nil, 0, fmt.Errorf("read the real payload: %w", err)
		}
		tree[name] = &fstest.MapFile{Data: content}
		size += int64(len(content))
	}
}
