// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"io/fs"

	"github.com/lockstep-dev/lockstep/payload/verify"
)

// Origin is the GitSource that declares an object, as the rules of the trust
// policy match it.
type Origin struct {
	// Cluster is the name of the cluster, URL the address of the source.
	Cluster, URL string
	// Serial changes whenever the source is opened again with another spec.
	Serial int
	// Tree returns the files of a revision of the source and how that revision was
	// verified; nil without a source.
	Tree func(ctx context.Context, revision string) (fs.FS, verify.Commit, error)
}
