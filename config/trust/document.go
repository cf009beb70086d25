// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package trust holds the signed trust policy of an installation: the document
// that says who may sign what, its signed envelope, the rule by which one
// revision follows another, and the pure evaluation of a target against it.
//
// The document travels by carriers that nobody needs to trust (Git, kubectl,
// the reconciler, a file): only Accept decides what is in force. The package
// reaches no network and no file; who needs signatures of images checked uses
// payload/verify, which hands its findings to Evaluate.
//
// The successor rule is The Update Framework's for its root role
// (TUF specification 1.0.33, 5.3.3 to 5.3.8): version N+1 counts only with the
// root threshold of N and of N+1.
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

// knownRoles lists the roles in the order in which people are shown them.
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

// The limits of a document; they bound the work of every decision.
const (
	maxDocument = 128 << 10
	maxKeys     = 64
	maxRules    = 128
	maxList     = 1024
	maxString   = 512
)

// Document is one version of the policy, decoded and checked. It's immutable
// and safe for concurrent use.
type Document struct {
	// Name is the policy's name; a successor has the same.
	Name string `yaml:"name"`
	// Version counts from 1, without gaps.
	Version int64 `yaml:"version"`
	// Expires ends forward rollouts; repair and rollback go on.
	Expires time.Time `yaml:"expires"`
	// Clusters holds patterns for the names of clusters that it governs.
	Clusters []string `yaml:"clusters"`
	// Keys holds all key material, each under a name.
	Keys []Key `yaml:"keys"`
	// Roles says which keys act in a role and how many must.
	Roles map[string]Role `yaml:"roles"`
	// Rules says what must be signed by which role.
	Rules []Rule `yaml:"rules"`
	// Sources holds URL prefixes of the Git sources that may be declared.
	Sources []string `yaml:"sources,omitempty"`
	// Floors holds the lowest version of a product that may be rolled out.
	Floors map[string]string `yaml:"floors,omitempty"`
	// MarkReset lowers the high-water mark of a product to a version, once.
	MarkReset map[string]string `yaml:"markReset,omitempty"`
	// Revoked denies keys and digests for ever.
	Revoked Revocations `yaml:"revoked,omitempty"`
	// SelfUpdate lists the products that may carry Lockstep's own objects.
	SelfUpdate []string `yaml:"selfUpdate,omitempty"`
	// AllowGitPayload lists the products that a signed Git tag may carry
	// without a signature of their own.
	AllowGitPayload []string `yaml:"allowGitPayload,omitempty"`

	digest Digest
	keys   map[string]publicKey // by key name
}

// Role is a set of keys and how many distinct ones of them must sign.
type Role struct {
	Keys      []string `yaml:"keys"`
	Threshold int      `yaml:"threshold"`
	// Delay holds back what the recovery role signed; no other role has one.
	Delay time.Duration `yaml:"delay,omitempty"`
}

// Rule says that targets which it matches must be signed by a role.
type Rule struct {
	Match Match `yaml:"match"`
	// Product is the product that the signed bytes must name.
	Product string `yaml:"product"`
	// Images narrows the rule to repositories that match one of the patterns.
	Images []string `yaml:"images,omitempty"`
	Role   string   `yaml:"role"`
}

// Match names what a rule governs.
type Match struct {
	// Kind is ClusterRelease or NodeOS.
	Kind string `yaml:"kind"`
	// Name is a pattern for the object's name.
	Name string `yaml:"name"`
	// Source is a pattern for the URL of the source that declared the object;
	// empty: any.
	Source string `yaml:"source,omitempty"`
}

// Revocations is the deny list. A key is named by its name in the document or
// by its fingerprint, so that an entry outlives the key's removal.
type Revocations struct {
	Keys    []string `yaml:"keys,omitempty"`
	Digests []Digest `yaml:"digests,omitempty"`
}

// Digest returns the digest of the exact bytes that the document was decoded
// from.
func (d *Document) Digest() Digest { return d.digest }

// Governs reports whether the document is for the cluster of this name.
func (d *Document) Governs(cluster string) bool {
	return slices.ContainsFunc(d.Clusters, func(p string) bool { return glob(p, cluster) })
}

// RoleKeys returns the usable keys of a role in the document's order: those
// that aren't revoked. It's empty for a role that the document doesn't define.
func (d *Document) RoleKeys(role string) []Key {
	var out []Key
	for _, k := range d.Keys {
		if slices.Contains(d.Roles[role].Keys, k.Name) && !d.keyRevoked(k.Name) {
			out = append(out, k)
		}
	}
	return out
}

// Products returns the products that rules, floors or lists name, sorted.
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
