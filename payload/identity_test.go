// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"testing"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

func TestEveryAPITypeNamesTheSameRelease(t *testing.T) {
	want := Identity{Version: "1.0.0", Image: "r@sha256:aa", Path: "releases/1.0.0"}
	for name, n := range map[string]Named{
		"desired": v1alpha1.DesiredRelease{Version: want.Version, Image: want.Image, Path: want.Path},
		"status":  v1alpha1.ReleaseRef{Version: want.Version, Image: want.Image, Path: want.Path, Verified: true},
		"history": &v1alpha1.ReleaseHistory{Version: want.Version, Image: want.Image, Path: want.Path, Revision: "main@sha1:01"},
	} {
		if got := IdentityOf(n); !got.Equal(want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	for _, other := range []Identity{
		{Version: "1.0.1", Image: want.Image, Path: want.Path},
		{Version: want.Version, Image: "r@sha256:bb", Path: want.Path},
		{Version: want.Version, Image: want.Image, Path: "releases/other"},
	} {
		if want.Equal(other) {
			t.Errorf("%+v equals %+v", want, other)
		}
	}
}

func TestAnIdentityWithoutContentIsEmpty(t *testing.T) {
	for identity, want := range map[Identity]bool{
		{}: true, {Version: "1.0.0"}: true, {Image: "r@sha256:aa"}: false, {Path: "releases/1.0.0"}: false,
	} {
		if identity.Empty() != want {
			t.Errorf("%+v: empty %v", identity, identity.Empty())
		}
	}
}
