// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package config embeds the kustomize bases of an installation: the namespace,
// CRDs, RBAC, admission policies, network policies and the reconciler's
// Deployment. The default base contains all of them;
// `kubectl apply --server-side -k config/default` installs it.
package config

import (
	"embed"
	"io/fs"
)

// Default is the path, in FS, of the base that contains all others.
const Default = "default"

//go:embed admission crd/*.yaml default manager namespace network rbac
var files embed.FS

// FS returns the kustomize bases, one per directory.
func FS() fs.FS { return files }
