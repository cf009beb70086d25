// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// waiverPolicy has a waiver role of two of a, b and gone, which is revoked; other
// is a key of another role.
func waiverPolicy(t *testing.T, role string) (*trust.Document, map[string]*build.Key) {
	t.Helper()
	keys := map[string]*build.Key{}
	var list strings.Builder
	for _, name := range []string{"a", "b", "gone", "other", "stranger"} {
		k, err := build.GenerateKey()
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = k
		pem, err := k.PublicPEM()
		if err != nil {
			t.Fatal(err)
		}
		if name != "stranger" {
			fmt.Fprintf(&list, "- {name: %s, pem: %q}\n", name, pem)
		}
	}
	d, err := trust.Decode([]byte("name: root\nversion: 1\nexpires: 2030-01-01T00:00:00Z\nclusters: [prod]\nkeys:\n" + list.String() +
		"roles:\n  root: {keys: [other], threshold: 1}\n  release: {keys: [other], threshold: 1}\n" + role +
		"rules:\n- {match: {kind: ClusterRelease, name: \"*\"}, product: platform, role: release}\nrevoked: {keys: [gone]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return d, keys
}

func TestAWaiverCountsForItsReleaseAndClusterOnly(t *testing.T) {
	const role = "  waiver: {keys: [a, b, gone], threshold: 2}\n"
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	doc, keys := waiverPolicy(t, role)
	noRole, _ := waiverPolicy(t, "")
	digest := trust.DigestOf([]byte("release"))
	good := trust.Waiver{
		Cluster: "prod", Product: "platform", Version: "1.4.0", Digest: digest, Checks: []string{precondition.GiantHop},
		Reason: "tested", Issued: now.Add(-time.Hour), Expires: now.Add(72 * time.Hour),
	}
	type change = func(*trust.Waiver, *trust.WaiverTarget)
	for name, tc := range map[string]struct {
		doc    *trust.Document
		change change
		by     string
		want   trust.Reason // "" if the waiver counts
		found  string
	}{
		"as issued":                 {doc, func(*trust.Waiver, *trust.WaiverTarget) {}, "a b", "", ""},
		"with a stranger's too":     {doc, func(*trust.Waiver, *trust.WaiverTarget) {}, "stranger b a", "", ""},
		"another cluster":           {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Cluster = "test" }, "a b", trust.NameMismatch, `cluster "test"`},
		"a release without source":  {doc, func(_ *trust.Waiver, r *trust.WaiverTarget) { r.Cluster = "" }, "a b", trust.NameMismatch, "without a source"},
		"another product":           {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Product = "site" }, "a b", trust.NameMismatch, `product "site"`},
		"another version":           {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Version = "1.5.0" }, "a b", trust.NameMismatch, `version "1.5.0"`},
		"another digest":            {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Digest = trust.DigestOf(nil) }, "a b", trust.WrongDigest, ""},
		"an expired one":            {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Expires = now }, "a b", trust.Expired, "expired"},
		"an expired one, accepted":  {doc, func(w *trust.Waiver, r *trust.WaiverTarget) { w.Expires, r.PreviouslyAccepted = now, true }, "a b", "", ""},
		"one of the future":         {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Issued = now.Add(time.Hour) }, "a b", trust.Expired, "issued"},
		"one for 15 days":           {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Expires = now.Add(15 * 24 * time.Hour) }, "a b", trust.LimitExceeded, "period"},
		"one that ends first":       {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Expires = w.Issued }, "a b", trust.LimitExceeded, "period"},
		"an unwaivable check":       {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Checks = []string{"VersionFloor"} }, "a b", trust.ForbiddenContent, "VersionFloor"},
		"a refusal of signatures":   {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Checks = []string{"GiantHop", "Unsigned"} }, "a b", trust.ForbiddenContent, "Unsigned"},
		"an unknown check":          {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Checks = []string{"*"} }, "a b", trust.ForbiddenContent, `"*"`},
		"no check":                  {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Checks = nil }, "a b", trust.LimitExceeded, "0 checks"},
		"no reason":                 {doc, func(w *trust.Waiver, _ *trust.WaiverTarget) { w.Reason = "" }, "a b", trust.WaiverInvalid, "reason"},
		"one signature of two":      {doc, func(*trust.Waiver, *trust.WaiverTarget) {}, "a", trust.ThresholdNotMet, "--key b.key"},
		"one key twice":             {doc, func(*trust.Waiver, *trust.WaiverTarget) {}, "a a", trust.ThresholdNotMet, "1 of 2"},
		"a revoked key":             {doc, func(*trust.Waiver, *trust.WaiverTarget) {}, "gone", trust.Revoked, "gone"},
		"a key of another role":     {doc, func(*trust.Waiver, *trust.WaiverTarget) {}, "other", trust.WrongAuthority, "other"},
		"an unknown key":            {doc, func(*trust.Waiver, *trust.WaiverTarget) {}, "stranger", trust.WrongAuthority, "unknown"},
		"no signature":              {doc, func(*trust.Waiver, *trust.WaiverTarget) {}, "", trust.Unsigned, ""},
		"a policy without the role": {noRole, func(*trust.Waiver, *trust.WaiverTarget) {}, "a b", trust.PolicyMissing, "without role waiver"},
		"no policy":                 {nil, func(*trust.Waiver, *trust.WaiverTarget) {}, "a b", trust.PolicyMissing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, target := good, trust.WaiverTarget{Cluster: "prod", Product: "platform", Version: "1.4.0", Digest: digest}
			tc.change(&w, &target)
			var signers []trust.SigningKey
			for k := range strings.FieldsSeq(tc.by) {
				signers = append(signers, keys[k])
			}
			// All names may be waived here, so that evaluation decides.
			anyName := append(precondition.Waivable(), w.Checks...)
			raw, err := trust.SealWaiver(good, anyName, signers...)
			if sealed, serr := trust.SealWaiver(w, anyName, signers...); serr == nil {
				raw = sealed
			} else {
				err = serr
			}
			if err == nil {
				_, _, err = verify.Waiver(tc.doc, target, raw, precondition.Waivable(), now)
			}
			if got := trust.ReasonOf(err); got != tc.want || tc.want == "" && err != nil {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			if err != nil && !strings.Contains(err.Error(), tc.found) {
				t.Errorf("got %v, want %q in it", err, tc.found)
			}
		})
	}
}

func TestAWaiverThatWasChangedOrIsTooLargeIsRefused(t *testing.T) {
	doc, keys := waiverPolicy(t, "  waiver: {keys: [a], threshold: 1}\n")
	for name, raw := range map[string]string{
		"empty": "", "no envelope": "{}", "too large": strings.Repeat(" ", trust.MaxWaiver+1),
	} {
		if _, _, err := verify.Waiver(doc, trust.WaiverTarget{}, []byte(raw), precondition.Waivable(), time.Now()); trust.ReasonOf(err) != trust.WaiverInvalid {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
	other, err := trust.SealAs(trust.WaiverType, []byte(`{"cluster":"prod","checks":["GiantHop"],"all":true}`), nil, keys["a"])
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := verify.Waiver(doc, trust.WaiverTarget{}, other, precondition.Waivable(), time.Now()); trust.ReasonOf(err) != trust.WaiverInvalid {
		t.Errorf("unknown field: %v, want a refusal", err)
	}
}
