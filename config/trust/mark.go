// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"

	"github.com/blang/semver/v4"
)

// Mark is a product's high-water mark: the highest version that was completed
// (in a cluster) or committed (on a host), and the version of the policy under
// which it was set. It only rises, but for the policy's markReset.
type Mark struct {
	Version string `json:"version,omitempty"`
	Policy  int64  `json:"policy,omitempty"`
}

// Raise returns the mark after version was completed under d.
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

// resetMark applies the document's markReset. A reset works once: on marks
// that were set under an earlier version of the policy.
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

// CheckVersion refuses a version of a product below the policy's floor
// (BelowFloor) or below the high-water mark (Rollback). A zero mark allows
// anything. Whether an explicit rollback is allowed below the mark is for the
// caller to say, who then passes a zero mark; nothing passes the floor.
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
			r.Fix = []string{"declare a version from " + floor + " on"}
			return r
		}
	}
	mark = d.resetMark(product, mark)
	if mark.Version == "" {
		return nil
	}
	if high, err := semver.Parse(mark.Version); err != nil || v.LT(high) {
		r.Cause, r.Found, r.Wanted = Rollback, "version "+version, "at least "+mark.Version+", the highest that was completed here"
		r.Fix = []string{"declare the preceding release, or spec.rollback with a reason", "a root-signed markReset"}
		return r
	}
	return nil
}
