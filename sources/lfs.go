// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sources

import "bytes"

// IsLFSPointer reports whether data is a Git LFS pointer instead of content. A
// pointer is shorter than 1024 bytes and has a fixed first line (git-lfs,
// docs/spec.md).
func IsLFSPointer(data []byte) bool {
	return len(data) < 1024 && bytes.HasPrefix(data, []byte("version https://git-lfs.github.com/spec/v1\n")) &&
		bytes.Contains(data, []byte("\noid sha256:"))
}
