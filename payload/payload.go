// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package payload loads releases: immutable sets of plain manifests with
// metadata, a digest and a version hash.
//
// Load reads a payload from a file tree whose digest was verified. It selects
// manifests by profile, feature set and capability, normalises each object and
// enforces trust boundary T1: a payload can't change what the cluster trusts.
// Package payload/image fetches payloads, payload/taskgraph orders their
// manifests and reconciler/apply applies them.
//
// The package has many small files, one per step of a load or rule about
// manifests. They share the unexported half of Manifest, which only Load makes.
package payload

import (
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// Payload is a loaded release. It is shared and immutable: callers must not
// modify its slices, maps and objects.
type Payload struct {
	// Product is the name in the metadata.
	Product string
	// Version is the release's semantic version.
	Version string
	// Channel is the update channel in the metadata, or "".
	Channel string
	// Previous are the versions in the metadata that support an update to this
	// one; empty if it lists none.
	Previous []string
	// MinimumVersion is the lowest version that supports an update to this one,
	// or "".
	MinimumVersion string
	// MaxMinorHop is the number of minor versions that one update to this release
	// may advance; nil for no limit.
	MaxMinorHop *int
	// Digest is the signed digest, "" for unverified payloads.
	Digest trust.Digest
	// Signed is the verified digest, and Evidence describes its signatures.
	Signed   verify.Signed
	Evidence trust.Evidence
	// VersionHash is "sha256:<hex>" over the metadata and all manifests before
	// selection.
	VersionHash string
	// CVO is true if the payload was read as the cluster-version-operator reads
	// it: the manifests of a component are applied in the order of their files.
	CVO bool
	// Manifests are the included manifests in payload order.
	Manifests []Manifest
	// Images are the component images by name in image-references, nil without
	// that file.
	Images map[string]string
	// Kubernetes is the Kubernetes version of the images that image-references
	// declares, or "".
	Kubernetes string
	// EnabledCapabilities are the active capabilities, sorted: the requested ones
	// that the payload has, and all that were enabled before.
	EnabledCapabilities []string
	// ImplicitCapabilities are the enabled capabilities that the selection
	// doesn't request. They can't be disabled in a running cluster.
	ImplicitCapabilities []string
	// Warnings about accepted content, each with file and line.
	Warnings []string
	// Skipped are the excluded documents.
	Skipped []Skipped
}

// Skipped is a document of the payload that isn't applied.
type Skipped struct {
	// ID is the object's identity.
	ID ObjectID
	// File is the path within the payload.
	File string
	// Document is counted from 1 within the file; Line is its first line.
	Document, Line int
	// Reason is one of the Skip constants.
	Reason string
	// Detail names the missing profile, feature set or capability.
	Detail string
}

// Reasons of Skipped. SkipInvalid is a manifest with invalid annotations, which
// CVO excludes everywhere.
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
