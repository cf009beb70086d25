// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// WaiverType is the DSSE payload type of a waiver.
const WaiverType = "application/vnd.lockstep.waiver.v1+json"

// The limits of a waiver.
const (
	// MaxWaiver is the maximum size of a waiver's envelope, in bytes.
	MaxWaiver = 16 << 10
	// MaxWaiverPeriod is the longest time from issue to expiry.
	MaxWaiverPeriod = 14 * 24 * time.Hour
	maxWaiverChecks = 16
	// waiverSkew is how far a waiver's time of issue may be in the future.
	waiverSkew = 10 * time.Minute
)

// Waiver accepts the risk of named preconditions for one release in one cluster.
// It waives nothing that this package decides.
type Waiver struct {
	// Cluster is the name of the cluster.
	Cluster string `json:"cluster"`
	// Product, Version and Digest are those of the release.
	Product string `json:"product"`
	Version string `json:"version"`
	Digest  Digest `json:"digest"`
	// Checks are the names of the waived preconditions.
	Checks []string `json:"checks"`
	// Reason is shown in the history.
	Reason string `json:"reason"`
	// Issued and Expires bound its use, at most MaxWaiverPeriod apart.
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
}

// Check rejects an incomplete waiver, one that is valid for too long, and names
// that aren't in waivable.
func (w Waiver) Check(waivable []string) error {
	r := &Refusal{Subject: "waiver"}
	fields := []struct{ name, value string }{
		{"cluster", w.Cluster}, {"product", w.Product}, {"version", w.Version}, {"digest", w.Digest.String()}, {"reason", w.Reason},
	}
	for _, f := range fields {
		if f.value == "" || len(f.value) > maxString || f.value != sanitize.Clip(f.value, maxString) {
			r.Cause, r.Found = WaiverInvalid, fmt.Sprintf("%s of %d bytes", f.name, len(f.value))
			r.Wanted = fmt.Sprintf("one line of 1 to %d printable bytes", maxString)
			return r
		}
	}
	if _, err := ParseDigest(w.Digest.String()); err != nil {
		r.Cause, r.Err = WaiverInvalid, err
		return r
	}
	if n := len(w.Checks); n == 0 || n > maxWaiverChecks {
		r.Cause, r.Found, r.Wanted = LimitExceeded, fmt.Sprintf("%d checks", n), fmt.Sprintf("1 to %d", maxWaiverChecks)
		return r
	}
	for _, c := range w.Checks {
		if !slices.Contains(waivable, c) {
			r.Cause, r.Found, r.Wanted = ForbiddenContent, "check "+quote(c), "one that may be waived: "+list(waivable)
			return r
		}
	}
	if period := w.Expires.Sub(w.Issued); w.Issued.IsZero() || period <= 0 || period > MaxWaiverPeriod {
		r.Cause, r.Found = LimitExceeded, fmt.Sprintf("a period of %s from %s", period, w.Issued.UTC().Format(time.RFC3339))
		r.Wanted = fmt.Sprintf("a positive one of at most %s", MaxWaiverPeriod)
		return r
	}
	return nil
}

// DecodeWaiver reads the payload of a waiver strictly.
func DecodeWaiver(b []byte) (Waiver, error) {
	var w Waiver
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		return Waiver{}, fmt.Errorf("decode waiver: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Waiver{}, errors.New("decode waiver: unexpected data after it")
	}
	return w, nil
}

// SealWaiver returns a signed envelope of a waiver, which must pass Check.
func SealWaiver(w Waiver, waivable []string, signers ...SigningKey) ([]byte, error) {
	if err := w.Check(waivable); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("encode waiver: %w", err)
	}
	return boundedWaiver(SealAs(WaiverType, raw, nil, signers...))
}

// SignWaiver adds signatures to the envelope of a waiver, which must pass Check.
func SignWaiver(raw []byte, waivable []string, signers ...SigningKey) ([]byte, error) {
	w, payload, err := OpenWaiver(raw)
	if err != nil {
		return nil, err
	}
	if err := w.Check(waivable); err != nil {
		return nil, err
	}
	return boundedWaiver(SealAs(WaiverType, payload, raw, signers...))
}

// boundedWaiver rejects an envelope that evaluation would reject for its size.
func boundedWaiver(raw []byte, err error) ([]byte, error) {
	if err == nil && len(raw) > MaxWaiver {
		return nil, fmt.Errorf("sign waiver: envelope has %d bytes, at most %d are allowed; use a shorter reason or fewer signatures", len(raw), MaxWaiver)
	}
	return raw, err
}

// OpenWaiver returns a waiver and its signed bytes without verifying signatures:
// only for display and for adding signatures.
func OpenWaiver(raw []byte) (Waiver, []byte, error) {
	if len(raw) > MaxWaiver {
		return Waiver{}, nil, fmt.Errorf("decode waiver: %d bytes, at most %d are allowed", len(raw), MaxWaiver)
	}
	e, err := openEnvelope(raw, WaiverType)
	if err != nil {
		return Waiver{}, nil, err
	}
	w, err := DecodeWaiver(e.payload)
	return w, e.payload, err
}

// WaiverTarget is the release for which a waiver is evaluated.
type WaiverTarget struct {
	// Cluster is the cluster's name, "" if no source declares the release.
	Cluster string
	// Product, Version and Digest come from the verified release.
	Product, Version string
	Digest           Digest
	// PreviouslyAccepted marks content that was accepted before. An expired
	// waiver still counts for it.
	PreviouslyAccepted bool
}

// EvaluateWaiver decides whether a waiver with checked signatures counts for a
// target, and returns its signers. It is pure. All refusals are *Refusal.
func EvaluateWaiver(d *Document, t WaiverTarget, w Waiver, waivable []string, found []CheckedSignature, now time.Time) ([]Signer, error) {
	r := &Refusal{Subject: "waiver"}
	mismatch := func(what, got, want string) error {
		r.Cause, r.Found, r.Wanted = NameMismatch, what+" "+quote(got), what+" "+quote(want)
		return r
	}
	if d == nil || d.digest == "" {
		r.Cause, r.Found, r.Wanted = PolicyMissing, "no active trust policy", "a policy with role "+RoleWaiver
		return nil, r
	}
	if err := w.Check(waivable); err != nil {
		return nil, err
	}
	switch {
	case len(d.Roles[RoleWaiver].Keys) == 0:
		r.Cause, r.Found, r.Wanted = PolicyMissing, revision(d)+" without role "+RoleWaiver, "a policy with that role"
		r.Fix = []string{"add the role to the trust policy, then lockstep trust sign"}
		return nil, r
	case t.Cluster == "":
		r.Cause, r.Found, r.Wanted = NameMismatch, "a release without a source, whose cluster has no name", "a GitSource with spec.cluster that declares the release"
		return nil, r
	case w.Cluster != t.Cluster:
		return nil, mismatch("cluster", w.Cluster, t.Cluster)
	case w.Product != t.Product:
		return nil, mismatch("product", w.Product, t.Product)
	case w.Digest != t.Digest:
		r.Cause, r.Found, r.Wanted = WrongDigest, w.Digest.Short(), t.Digest.Short()
		return nil, r
	case w.Version != t.Version:
		return nil, mismatch("version", w.Version, t.Version)
	case w.Issued.After(now.Add(waiverSkew)):
		r.Cause, r.Found, r.Wanted = Expired, "issued "+w.Issued.UTC().Format(time.RFC3339), "a time in the past"
		return nil, r
	case !t.PreviouslyAccepted && !now.Before(w.Expires):
		r.Cause, r.Found, r.Wanted = Expired, "expired "+w.Expires.UTC().Format(time.RFC3339), "a new waiver"
		return nil, r
	}
	signers, err := d.satisfy(Rule{Role: RoleWaiver}, Target{}, found)
	if refused, ok := errors.AsType[*Refusal](err); ok {
		refused.Subject = "waiver"
		refused.Fix = []string{"lockstep release waive FILE --key " + d.missingKey(RoleWaiver, signedBy(found)) + ".key"}
		refused.Retry = false // a signature is added in the spec
		return nil, refused
	}
	return signers, err
}

// signedBy returns the keys of valid signatures.
func signedBy(found []CheckedSignature) []Signer {
	var out []Signer
	for _, f := range found {
		if f.Finding == Valid {
			out = append(out, Signer{Name: f.Key})
		}
	}
	return out
}

// CountSignatures returns the number of readable signatures in a waiver's envelope,
// by known or unknown keys.
func CountSignatures(raw []byte) int {
	e, err := openEnvelope(raw, WaiverType)
	if err != nil {
		return 0
	}
	return len(e.signatures)
}
