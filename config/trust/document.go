// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package trust implements the signed trust policy: the document that defines
// who may sign what, its signed envelope, the rules for a successor, and the
// pure evaluation of a target.
//
// The document may be delivered over untrusted channels (Git, kubectl, the
// reconciler, a file): only Accept activates a document. The package accesses
// neither network nor files; payload/verify checks the signatures of images and
// passes its findings to Evaluate.
//
// The successor rule is that of The Update Framework for its root role (TUF
// specification 1.0.33, 5.3.3 to 5.3.8): version N+1 needs the root thresholds
// of N and of N+1.
package trust

import (
	"maps"
	"slices"
	"time"
)

// The roles that a document may define.
const (
	RoleRoot      = "root"
	RoleRecovery  = "recovery"
	RoleRelease   = "release"
	RoleOS        = "os"
	RoleConfig    = "config"
	RoleOrder     = "order"
	RoleWaiver    = "waiver"
	RoleTimestamp = "timestamp"
	RoleGit       = "git"
)

// knownRoles lists the roles in display order.
func knownRoles() []string {
	return []string{
		RoleRoot, RoleRecovery, RoleRelease, RoleOS, RoleConfig, RoleOrder, RoleWaiver, RoleTimestamp, RoleGit,
	}
}

// The kinds that rules govern.
const (
	KindRelease = "ClusterRelease"
	KindNodeOS  = "NodeOS"
)

// The limits of a document, which bound the cost of an evaluation.
const (
	maxDocument = 128 << 10
	maxKeys     = 64
	maxRules    = 128
	maxList     = 1024
	maxString   = 512
)

// Document is one version of the policy, decoded and checked. It is immutable
// and safe for concurrent use.
type Document struct {
	// Name of the policy; a successor has the same.
	Name string `yaml:"name"`
	// Version counts from 1, without gaps.
	Version int64 `yaml:"version"`
	// Expires ends forward rollouts; repair and rollback continue.
	Expires time.Time `yaml:"expires"`
	// Clusters lists patterns for the names of the governed clusters.
	Clusters []string `yaml:"clusters"`
	// Keys lists all key material by name.
	Keys []Key `yaml:"keys"`
	// Roles maps each role to its keys and threshold.
	Roles map[string]Role `yaml:"roles"`
	// Rules define which targets must be signed by which role.
	Rules []Rule `yaml:"rules"`
	// Sources lists the URL prefixes of Git sources that may be declared.
	Sources []string `yaml:"sources,omitempty"`
	// Floors maps products to the lowest version that may be rolled out.
	Floors map[string]string `yaml:"floors,omitempty"`
	// MarkReset lowers the high-water mark of a product to a version, once.
	MarkReset map[string]string `yaml:"markReset,omitempty"`
	// Revoked denies keys and digests permanently.
	Revoked Revocations `yaml:"revoked,omitempty"`
	// SelfUpdate lists the products that may contain Lockstep's own objects.
	SelfUpdate []string `yaml:"selfUpdate,omitempty"`
	// AllowGitPayload lists the products that may be declared by path, signed
	// only by the Git tag.
	AllowGitPayload []string `yaml:"allowGitPayload,omitempty"`

	digest Digest
	keys   map[string]publicKey // by key name
}

// Role is a set of keys and the number of distinct keys that must sign.
type Role struct {
	Keys      []string `yaml:"keys"`
	Threshold int      `yaml:"threshold"`
	// Delay before a document signed by the recovery role is activated; only
	// that role has one.
	Delay time.Duration `yaml:"delay,omitempty"`
}

// Rule requires a role to sign the matching targets.
type Rule struct {
	Match Match `yaml:"match"`
	// Product that the signed content must declare.
	Product string `yaml:"product"`
	// Images limits the rule to repositories that match one of the patterns.
	Images []string `yaml:"images,omitempty"`
	Role   string   `yaml:"role"`
}

// Match selects the objects of a rule.
type Match struct {
	// Kind is ClusterRelease or NodeOS.
	Kind string `yaml:"kind"`
	// Name is a pattern for the object's name.
	Name string `yaml:"name"`
	// Source is a pattern for the URL of the declaring source; empty: any.
	Source string `yaml:"source,omitempty"`
}

// Revocations is the deny list. Keys are listed by name or by fingerprint, which
// stays valid after the key is removed from the document.
type Revocations struct {
	Keys    []string `yaml:"keys,omitempty"`
	Digests []Digest `yaml:"digests,omitempty"`
}

// Digest returns the digest of the encoded document.
func (d *Document) Digest() Digest { return d.digest }

// Governs reports whether the document governs the cluster of this name.
func (d *Document) Governs(cluster string) bool {
	return slices.ContainsFunc(d.Clusters, func(p string) bool { return glob(p, cluster) })
}

// RoleKeys returns the keys of a role that aren't revoked, in the document's
// order. It returns none for an undefined role.
func (d *Document) RoleKeys(role string) []Key {
	var out []Key
	for _, k := range d.Keys {
		if slices.Contains(d.Roles[role].Keys, k.Name) && !d.keyRevoked(k.Name) {
			out = append(out, k)
		}
	}
	return out
}

// Products returns the products of all rules, sorted.
func (d *Document) Products() []string {
	set := map[string]struct{}{}
	for _, r := range d.Rules {
		set[r.Product] = struct{}{}
	}
	return slices.Sorted(maps.Keys(set))
}

// keyRevoked reports whether the key of this name is on the deny list, by name
// or by fingerprint.
func (d *Document) keyRevoked(name string) bool {
	return slices.Contains(d.Revoked.Keys, name) || slices.Contains(d.Revoked.Keys, d.keys[name].fingerprint)
}

// threshold returns the threshold of a role, or 0 if it isn't defined.
func (d *Document) threshold(role string) int { return d.Roles[role].Threshold }

// RoleNames returns the roles that the document defines, root first.
func (d *Document) RoleNames() []string {
	return slices.DeleteFunc(knownRoles(), func(r string) bool {
		_, ok := d.Roles[r]
		return !ok
	})
}

// KeyRevoked reports whether the key of this name is on the deny list.
func (d *Document) KeyRevoked(name string) bool { return d.keyRevoked(name) }
