// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package verify checks signatures of content against the trust policy, and is
// the only maker of Signed: a digest that satisfied it. What opens, unpacks or
// writes content takes a Signed and nothing else, so that nobody can hand it
// what wasn't verified.
//
// Images are checked by cosign's own verifier in both of its formats, with
// keys only and without any network but the registry: no TUF, no transparency
// log, no environment variable has a say. The signature material is fetched by
// payload/registry, once and within limits. The policy is evaluated by
// config/trust. Agents link this package with their own copy of the policy; it
// needs nothing of Kubernetes.
package verify

import (
	"io/fs"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

// Signed is content by digest that satisfied the policy. Only Verifier makes a
// non-zero one. It's a value, safe to copy and to share.
type Signed struct {
	kind     string
	image    string
	digest   trust.Digest
	product  string
	version  string
	evidence trust.Evidence
	tree     *tree.Tree
}

// Kind returns the kind of the object that asked: what the content was signed
// for.
func (s Signed) Kind() string { return s.kind }

// Digest returns the digest that the signatures cover: of the manifest of an
// image, or of the tree of a path.
func (s Signed) Digest() trust.Digest { return s.digest }

// Product returns the product that the signed bytes name.
func (s Signed) Product() string { return s.product }

// Version returns the version that the signed bytes name.
func (s Signed) Version() string { return s.version }

// Evidence says who signed, and why that was enough.
func (s Signed) Evidence() trust.Evidence { return s.evidence }

// Repository returns the logical repository of an image, "" for a path.
func (s Signed) Repository() string { return s.image }

// Reference returns repository@digest for an image, and the digest alone for a
// path.
func (s Signed) Reference() string {
	if s.image == "" {
		return s.digest.String()
	}
	return s.image + "@" + s.digest.String()
}

// Tree returns the verified files of a path; nil and false for an image, whose
// content payload/image brings.
func (s Signed) Tree() (fs.FS, bool) {
	if s.tree == nil {
		return nil, false
	}
	return s.tree, true
}

// IsZero reports whether s is the zero value, which is good for nothing.
func (s Signed) IsZero() bool { return s.digest == "" }
