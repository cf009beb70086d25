// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package verify verifies signatures of content against the trust policy. Only
// this package creates a Signed, a digest that satisfied the policy. Code that
// unpacks or writes content accepts only a Signed, never unverified content.
//
// cosign's verifier checks images in both of its formats, with keys only. It uses
// no network except the registry, no TUF, no transparency log and no environment
// variables. Package payload/registry fetches signature material within limits;
// config/trust evaluates the policy. Agents use this package with their own copy
// of the policy. It doesn't depend on Kubernetes.
package verify

import (
	"io/fs"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

// Signed is the digest of content that satisfied the policy. Only Verifier creates
// a Signed that isn't zero. It is an immutable value.
type Signed struct {
	kind     string
	image    string
	digest   trust.Digest
	product  string
	version  string
	evidence trust.Evidence
	tree     *tree.Tree
}

// Kind returns the kind of object for which the content was verified.
func (s Signed) Kind() string { return s.kind }

// Digest returns the signed digest: of the manifest of an image, or of the tree of
// a path.
func (s Signed) Digest() trust.Digest { return s.digest }

// Product returns the product in the signed content.
func (s Signed) Product() string { return s.product }

// Version returns the version in the signed content.
func (s Signed) Version() string { return s.version }

// Evidence returns the signers and the satisfied rules.
func (s Signed) Evidence() trust.Evidence { return s.evidence }

// Repository returns the repository in the image reference, "" for a path.
func (s Signed) Repository() string { return s.image }

// Reference returns repository@digest for an image and the digest for a path.
func (s Signed) Reference() string {
	if s.image == "" {
		return s.digest.String()
	}
	return s.image + "@" + s.digest.String()
}

// Tree returns the verified files of a path; nil and false for an image, which
// payload/image fetches.
func (s Signed) Tree() (fs.FS, bool) {
	if s.tree == nil {
		return nil, false
	}
	return s.tree, true
}

// IsZero reports whether s is the zero value, which isn't verified.
func (s Signed) IsZero() bool { return s.digest == "" }
