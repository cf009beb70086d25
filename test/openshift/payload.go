// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package openshift reads a real payload: that of 30 OpenShift operators, which
// isn't ours to carry and lies beside the project where it is there at all.
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

// Payload reads data/openshift-payload.tar.gz in the directory that
// LOCKSTEP_SHARED names, or else in the one called shared beside the project,
// whose root is given. size is the bytes of its YAML and JSON. Where it isn't
// there, the error is an fs.ErrNotExist.
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
