// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/blang/semver/v4"
	"go.yaml.in/yaml/v3"
)

// maxDepth is the deepest nesting of a document: rules[].match.name is at 5.
const maxDepth = 8

// Decode reads a trust document strictly: unknown and repeated fields, anchors,
// more than one document, undefined names and unreachable thresholds are errors
// that name the line. It ignores the expiry, because an expired document stays
// active; Accept checks it.
func Decode(b []byte) (*Document, error) {
	if len(b) > maxDocument {
		return nil, fmt.Errorf("decode trust policy: %d bytes, at most %d are allowed", len(b), maxDocument)
	}
	root, err := plainYAML(b)
	if err != nil {
		return nil, fmt.Errorf("decode trust policy: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	d := &Document{}
	if err := dec.Decode(d); err != nil {
		return nil, fmt.Errorf("decode trust policy: %w", err)
	}
	d.digest = DigestOf(b)
	c := checker{root: root, doc: d}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("decode trust policy: %w", err)
	}
	return d, nil
}

// plainYAML rejects ambiguous YAML: anchors, aliases, merge keys, custom tags,
// deep nesting and more than one document.
func plainYAML(b []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var root yaml.Node
	if err := dec.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("empty document")
		}
		return nil, fmt.Errorf("parse: %w", err)
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document")
	}
	if err := plainNode(&root, 0); err != nil {
		return nil, err
	}
	return &root, nil
}

// plainNode checks a node and its descendants.
func plainNode(n *yaml.Node, depth int) error {
	switch {
	case depth > maxDepth:
		return fmt.Errorf("line %d: nested deeper than %d", n.Line, maxDepth)
	case n.Anchor != "" || n.Kind == yaml.AliasNode || n.Tag == "!!merge":
		return fmt.Errorf("line %d: anchors, aliases and merge keys aren't allowed", n.Line)
	case n.Style&yaml.TaggedStyle != 0:
		return fmt.Errorf("line %d: tag %q isn't allowed", n.Line, n.Tag)
	}
	for _, c := range n.Content {
		if err := plainNode(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// checker checks a decoded document; root provides the line numbers.
type checker struct {
	root *yaml.Node
	doc  *Document
}

// errorf returns an error prefixed with the line of the field at path.
func (c checker) errorf(path []any, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", lineOf(c.root, path), fmt.Errorf(format, args...))
}

// at returns a path of field names and indexes.
func at(path ...any) []any { return path }

// lineOf returns the line of the deepest existing node on a path.
func lineOf(n *yaml.Node, path []any) int {
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	for _, step := range path {
		next := child(n, step)
		if next == nil {
			return n.Line
		}
		n = next
	}
	return n.Line
}

// child returns the node under a field name or an index, or nil.
func child(n *yaml.Node, step any) *yaml.Node {
	switch s := step.(type) {
	case string:
		for i := 0; i+1 < len(n.Content) && n.Kind == yaml.MappingNode; i += 2 {
			if n.Content[i].Value == s {
				return n.Content[i+1]
			}
		}
	case int:
		if n.Kind == yaml.SequenceNode && s < len(n.Content) {
			return n.Content[s]
		}
	}
	return nil
}

func (c checker) check() error {
	for _, f := range []func() error{c.head, c.sizes, c.keys, c.roles, c.rules, c.versions, c.lists} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (c checker) head() error {
	d := c.doc
	switch {
	case !validName(d.Name):
		return c.errorf(at("name"), "name %q is invalid: use letters, digits, '.', '_' and '-', at most %d", d.Name, maxName)
	case d.Version < 1:
		return c.errorf(at("version"), "version is %d, must be at least 1", d.Version)
	case d.Expires.IsZero():
		return c.errorf(at("expires"), "expires is missing")
	case len(d.Clusters) == 0:
		return c.errorf(at("clusters"), "clusters is empty: list the governed clusters, such as \"prod-*\"")
	}
	for i, p := range d.Clusters {
		if err := checkGlob(p); err != nil {
			return c.errorf(at("clusters", i), "%w", err)
		}
	}
	return nil
}

func (c checker) sizes() error {
	d := c.doc
	for name, n := range map[string]struct{ have, most int }{
		"keys":            {len(d.Keys), maxKeys},
		"rules":           {len(d.Rules), maxRules},
		"clusters":        {len(d.Clusters), maxList},
		"sources":         {len(d.Sources), maxList},
		"floors":          {len(d.Floors), maxList},
		"selfUpdate":      {len(d.SelfUpdate), maxList},
		"allowGitPayload": {len(d.AllowGitPayload), maxList},
		"revoked":         {len(d.Revoked.Keys) + len(d.Revoked.Digests), 2 * maxList},
	} {
		if n.have > n.most {
			return c.errorf(at(name), "%s has %d entries, at most %d are allowed", name, n.have, n.most)
		}
	}
	return nil
}

func (c checker) keys() error {
	d := c.doc
	d.keys = make(map[string]publicKey, len(d.Keys))
	owner := map[string]string{}
	for i := range d.Keys {
		k := &d.Keys[i]
		if !validName(k.Name) {
			return c.errorf(at("keys", i, "name"), "key name %q is invalid", k.Name)
		}
		if _, twice := d.keys[k.Name]; twice {
			return c.errorf(at("keys", i, "name"), "duplicate key %q", k.Name)
		}
		p, err := k.parse()
		if err != nil {
			return c.errorf(at("keys", i), "%w", err)
		}
		if first, twice := owner[p.fingerprint]; twice {
			return c.errorf(at("keys", i), "keys %q and %q are the same key %s", first, k.Name, p.fingerprint)
		}
		if !k.NotBefore.IsZero() && !k.NotAfter.IsZero() && k.NotAfter.Before(k.NotBefore) {
			return c.errorf(at("keys", i, "notAfter"), "key %q: notAfter is before notBefore", k.Name)
		}
		k.fingerprint, k.algorithm = p.fingerprint, p.algorithm
		d.keys[k.Name], owner[p.fingerprint] = p, k.Name
	}
	return nil
}

func (c checker) roles() error {
	if _, ok := c.doc.Roles[RoleRoot]; !ok {
		return c.errorf(at("roles"), "role root is missing: without it the policy can't be changed")
	}
	for _, name := range slices.Sorted(maps.Keys(c.doc.Roles)) {
		if !slices.Contains(knownRoles(), name) {
			return c.errorf(at("roles", name), "role %q is unknown; the roles are %s", name, strings.Join(knownRoles(), ", "))
		}
		if err := c.role(name, c.doc.Roles[name]); err != nil {
			return err
		}
	}
	return nil
}

func (c checker) role(name string, r Role) error {
	seen := map[string]bool{}
	usable := 0
	for i, k := range r.Keys {
		p, ok := c.doc.keys[k]
		switch {
		case !ok:
			return c.errorf(at("roles", name, "keys", i), "role %s lists key %q, which isn't in keys", name, k)
		case seen[k]:
			return c.errorf(at("roles", name, "keys", i), "role %s lists key %q twice", name, k)
		case !slices.Contains(materials(name), p.material):
			return c.errorf(at("roles", name, "keys", i), "role %s can't use %s key %q, only %s",
				name, p.material, k, strings.Join(materials(name), " or "))
		}
		seen[k] = true
		if !c.doc.keyRevoked(k) {
			usable++
		}
	}
	if r.Threshold < 1 || r.Threshold > usable {
		return c.errorf(at("roles", name, "threshold"), "role %s requires %d signatures but has %d usable keys", name, r.Threshold, usable)
	}
	if r.Delay < 0 || r.Delay > 90*24*time.Hour || (r.Delay > 0 && name != RoleRecovery) {
		return c.errorf(at("roles", name, "delay"), "role %s has delay %s: only role recovery may have a delay, of at most 90 days", name, r.Delay)
	}
	return nil
}

// materials returns the key formats that a role supports: PEM for signatures of
// cosign, SSH or OpenPGP for those of Git.
func materials(role string) []string {
	switch role {
	case RoleRelease, RoleOS, RoleTimestamp:
		return []string{MaterialPEM}
	case RoleGit:
		return []string{MaterialSSH, MaterialPGP}
	default:
		return []string{MaterialPEM, MaterialSSH}
	}
}

func (c checker) rules() error {
	for i, r := range c.doc.Rules {
		if r.Match.Kind != KindRelease && r.Match.Kind != KindNodeOS {
			return c.errorf(at("rules", i, "match", "kind"), "rule %d matches kind %q: it must be %s or %s",
				i, r.Match.Kind, KindRelease, KindNodeOS)
		}
		if _, ok := c.doc.Roles[r.Role]; !ok {
			return c.errorf(at("rules", i, "role"), "rule %d requires role %q, which isn't in roles", i, r.Role)
		}
		if r.Role != RoleRelease && r.Role != RoleOS {
			return c.errorf(at("rules", i, "role"), "rule %d requires role %q: images are signed by release or os", i, r.Role)
		}
		if !validName(r.Product) {
			return c.errorf(at("rules", i, "product"), "rule %d: product %q is invalid", i, r.Product)
		}
		patterns := append([]string{r.Match.Name}, r.Images...)
		if r.Match.Source != "" {
			patterns = append(patterns, r.Match.Source)
		}
		for _, p := range patterns {
			if err := checkGlob(p); err != nil {
				return c.errorf(at("rules", i), "rule %d: %w", i, err)
			}
		}
	}
	return nil
}

func (c checker) versions() error {
	for field, m := range map[string]map[string]string{"floors": c.doc.Floors, "markReset": c.doc.MarkReset} {
		for product, v := range m {
			if _, err := semver.Parse(v); err != nil || !validName(product) {
				return c.errorf(at(field, product), "%s: %q: %q isn't a semantic version", field, product, v)
			}
		}
	}
	return nil
}

func (c checker) lists() error {
	for i, s := range c.doc.Sources {
		if _, ok := canonicalURL(s); !ok {
			return c.errorf(at("sources", i), "source %q isn't a plain URL prefix with scheme and host", s)
		}
	}
	for i, s := range c.doc.Revoked.Digests {
		if _, err := ParseDigest(string(s)); err != nil {
			return c.errorf(at("revoked", "digests", i), "%w", err)
		}
	}
	for i, s := range c.doc.Revoked.Keys {
		if s == "" || len(s) > maxString {
			return c.errorf(at("revoked", "keys", i), "entry is empty or too long")
		}
	}
	for field, list := range map[string][]string{"selfUpdate": c.doc.SelfUpdate, "allowGitPayload": c.doc.AllowGitPayload} {
		for i, s := range list {
			if !validName(s) {
				return c.errorf(at(field, i), "%s: product %q is invalid", field, s)
			}
		}
	}
	return nil
}

// maxName is the longest name of a policy, key or product.
const maxName = 63

// validName reports whether s is a plain name.
func validName(s string) bool {
	for i, r := range s {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}
