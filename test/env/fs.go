// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"fmt"
	"io/fs"

	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// copyFS copies a tree to a file system of kustomize's.
func copyFS(to filesys.FileSystem, from fs.FS, root string) error {
	return fs.WalkDir(from, root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(from, path)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		return to.WriteFile(path, raw)
	})
}
