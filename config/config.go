// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package config carries what an installation applies: the namespace, the
// definitions of the declared kinds, roles, admission policies, network policies
// and the reconciler's Deployment, as kustomize bases. The default base is all
// of them; `kubectl apply --server-side -k config/default` installs it.
package config

import (
	"embed"
	"io/fs"
)

// Default is the path, in FS, of the base that holds all the others.
const Default = "default"

//go:embed admission crd/*.yaml default manager namespace network rbac
var files embed.FS

// FS returns the kustomize bases, one a directory.
func FS() fs.FS { return files }
