// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sources

import "bytes"

// IsLFSPointer reports whether data is a pointer of Git LFS rather than the
// content that people see in their checkout. The format's first line is fixed
// and a pointer is shorter than 1024 bytes (git-lfs, docs/spec.md).
func IsLFSPointer(data []byte) bool {
	return len(data) < 1024 && bytes.HasPrefix(data, []byte("version https://git-lfs.github.com/spec/v1\n")) &&
		bytes.Contains(data, []byte("\noid sha256:"))
}
