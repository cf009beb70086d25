// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"

	"github.com/blang/semver/v4"
)

// Mark is a product's high-water mark: the highest version that was completed
// (in a cluster) or committed (on a host), and the policy version under which it
// was set. Only the policy's markReset lowers it.
type Mark struct {
	Version string `json:"version,omitempty"`
	Policy  int64  `json:"policy,omitempty"`
}

// Raise returns the mark after version was completed or committed under d.
func (m Mark) Raise(d *Document, product, version string) (Mark, error) {
	v, err := semver.Parse(version)
	if err != nil {
		return m, fmt.Errorf("product %s: version %q isn't a semantic version: %w", product, version, err)
	}
	m = d.resetMark(product, m)
	if high, err := semver.Parse(m.Version); err == nil && v.LT(high) {
		return m, nil
	}
	return Mark{Version: version, Policy: d.Version}, nil
}

// resetMark applies the document's markReset once: only to marks that were set
// under an earlier policy version.
func (d *Document) resetMark(product string, m Mark) Mark {
	reset, ok := d.MarkReset[product]
	if !ok || m.Policy >= d.Version {
		return m
	}
	to, err := semver.Parse(reset)
	if err != nil {
		return m
	}
	if high, err := semver.Parse(m.Version); err == nil && to.LT(high) {
		return Mark{Version: reset, Policy: d.Version}
	}
	return m
}

// CheckVersion rejects a version below the policy's floor (BelowFloor) or below
// the high-water mark (Rollback). A caller that permits a rollback below the mark
// passes a zero mark; the floor always applies.
func (d *Document) CheckVersion(product, version string, mark Mark) error {
	r := &Refusal{Subject: product + " " + version}
	v, err := semver.Parse(version)
	if err != nil {
		r.Cause, r.Found, r.Wanted, r.Err = NameMismatch, "version "+quote(version), "a semantic version", err
		return r
	}
	if floor, ok := d.Floors[product]; ok {
		if f, err := semver.Parse(floor); err != nil || v.LT(f) {
			r.Cause, r.Found, r.Wanted = BelowFloor, "version "+version, "at least the policy's floor "+floor
			r.Fix = []string{"declare version " + floor + " or newer"}
			return r
		}
	}
	mark = d.resetMark(product, mark)
	if mark.Version == "" {
		return nil
	}
	if high, err := semver.Parse(mark.Version); err != nil || v.LT(high) {
		r.Cause, r.Found, r.Wanted = Rollback, "version "+version, "at least "+mark.Version+", the highest version that was completed here"
		r.Fix = []string{"declare the preceding release, or set spec.rollback", "a root-signed markReset"}
		return r
	}
	return nil
}
