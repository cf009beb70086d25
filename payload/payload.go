// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package payload is an immutable release of plain, ordered manifests: its
// metadata, digest and version hash.
//
// Load reads a payload from a file tree whose digest was verified. It filters
// by profile, feature set and capability, normalises each object, and holds
// wall 1: a payload can't change whom the cluster trusts. Ordering is left to
// payload/taskgraph, fetching to payload/image, applying to reconciler/apply.
package payload

import (
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// Payload is one loaded release. It is immutable: all who hold it share its
// slices and objects and must not change them.
type Payload struct {
	// Product is the name that the metadata gives the release.
	Product string
	// Version is the release's semantic version.
	Version string
	// Channel is the update channel that the metadata names, or "".
	Channel string
	// Previous are the versions that may be updated to this one, as the
	// metadata lists them; empty when it lists none.
	Previous []string
	// MinimumVersion is the lowest version that may be updated to this one,
	// or "".
	MinimumVersion string
	// Digest is what the signatures cover, "" if nobody vouches for the payload.
	Digest trust.Digest
	// Signed is the proof, and Evidence who gave it.
	Signed   verify.Signed
	Evidence trust.Evidence
	// VersionHash is "sha256:<hex>" over the canonical manifests.
	VersionHash string
	// Manifests are the included manifests in payload order.
	Manifests []Manifest
	// Images are the component images by the names of image-references, nil
	// without that file.
	Images map[string]string
	// Kubernetes is the version of Kubernetes that the images carry, as
	// image-references says; "" if it doesn't.
	Kubernetes string
	// EnabledCapabilities are those in force, sorted: what the selection asks
	// for as far as the payload knows it, and all that were enabled before.
	EnabledCapabilities []string
	// ImplicitCapabilities are those of them that the selection doesn't ask
	// for: they stay, as nothing can take them from a running cluster.
	ImplicitCapabilities []string
	// Warnings are the oddities that were accepted, each naming file and line.
	Warnings []string
	// Skipped are the documents that the filter left out.
	Skipped []Skipped
}

// Skipped is a document of the payload that isn't applied, and why.
type Skipped struct {
	// ID is the object's identity.
	ID ObjectID
	// File is the file's name within the payload.
	File string
	// Document counts from 1 within the file; Line is its first line.
	Document, Line int
	// Reason is one of the Skip constants.
	Reason string
	// Detail says which profile, set or capability was missing.
	Detail string
}

// Reasons of Skipped. SkipInvalid is a manifest whose annotations CVO can't
// make sense of, and so leaves out everywhere.
const (
	SkipProfile      = "Profile"
	SkipExcluded     = "Excluded"
	SkipFeatureSet   = "FeatureSet"
	SkipFeatureGate  = "FeatureGate"
	SkipMajorVersion = "MajorVersion"
	SkipCapability   = "Capability"
	SkipTemplate     = "Template"
	SkipDuplicate    = "Duplicate"
	SkipInvalid      = "Invalid"
)
