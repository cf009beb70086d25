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

// pinned is an image named by its digest.
var pinned = regexp.MustCompile(`^[^@\s]+@sha256:[0-9a-f]{64}$`)

// warnUnpinned warns of images in image-references that have no digest: what
// they name may change under the signature.
func (p *Payload) warnUnpinned() {
	for _, name := range slices.Sorted(maps.Keys(p.Images)) {
		if image := p.Images[name]; !pinned.MatchString(image) {
			p.warn(path.Join(ReleaseDir, ReferencesFile), 0, 0, fmt.Sprintf("image %s is %q, want it by digest, repository@sha256:<64 hex digits>", sanitize.Line(name), sanitize.Line(image)))
		}
	}
}
