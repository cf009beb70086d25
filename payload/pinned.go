// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// pinned matches image references with a digest.
var pinned = regexp.MustCompile(`^[^@\s]+@sha256:[0-9a-f]{64}$`)

// warnUnpinned warns about images in image-references without a digest. Their
// content may change although the release is signed.
func (p *Payload) warnUnpinned() {
	for _, name := range slices.Sorted(maps.Keys(p.Images)) {
		if image := p.Images[name]; !pinned.MatchString(image) {
			p.warn(path.Join(ReleaseDir, ReferencesFile), 0, 0, fmt.Sprintf("image %s is %q, must be pinned by digest: repository@sha256:<64 hex digits>", sanitize.Line(name), sanitize.Line(image)))
		}
	}
}
