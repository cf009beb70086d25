// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// testPolicy returns a policy for two kinds with a narrower rule.
func testPolicy(tb testing.TB, rest string) *Document {
	tb.Helper()
	var keys []testKey
	for _, n := range []string{"a", "b", "c", "os"} {
		keys = append(keys, ecdsaKey(tb, n))
	}
	return source{
		version: 1, keys: keys,
		roles: "  root: {keys: [c], threshold: 1}\n  release: {keys: [a, b], threshold: 2}\n  os: {keys: [os], threshold: 1}\n",
		rest: `rules:
- {match: {kind: ClusterRelease, name: "platform*"}, product: platform, role: release}
- {match: {kind: ClusterRelease, name: "*"}, product: site, images: ["r.example.com/site/**"], role: os}
- {match: {kind: ClusterRelease, name: "platform-core"}, product: platform, role: os}
- {match: {kind: NodeOS, name: "*", source: "ssh://git.example.com/**"}, product: platform-os, role: os}
` + rest,
	}.document(tb)
}

func valid(keys ...string) []CheckedSignature {
	var out []CheckedSignature
	for _, k := range keys {
		out = append(out, CheckedSignature{Finding: Valid, Key: k, Format: "bundle", Material: DigestOf([]byte(k)), Seen: now, Detail: k})
	}
	return out
}

func target(kind, name, product string) Target {
	return Target{
		Cluster: "prod-1", Kind: kind, Name: name, Image: "r.example.com/site/x", Digest: DigestOf([]byte("it")),
		Product: product, Version: "1.0.0",
	}
}

func TestEvaluate(t *testing.T) {
	other := []CheckedSignature{{Finding: OtherDigest, Key: "a", Detail: "a signed other content"}}
	unknown := []CheckedSignature{{Finding: UnknownKey, Detail: "unknown"}}
	attestation := []CheckedSignature{{Finding: OtherType}, {Finding: Unreadable}}
	elsewhere := target(KindRelease, "x", "site")
	elsewhere.Image = "r.example.com/sites/x"
	dev := target(KindRelease, "platform", "platform")
	dev.Cluster = "dev"
	otherSource := target(KindNodeOS, "workers", "platform-os")
	otherSource.Source = "ssh://evil.example.com/x"
	nameless := target(KindRelease, "", "platform")
	for name, tc := range map[string]struct {
		target Target
		found  []CheckedSignature
		reason Reason
		retry  bool
	}{
		"two of two":                                {target(KindRelease, "platform", "platform"), valid("a", "b"), "", false},
		"one of two":                                {target(KindRelease, "platform", "platform"), valid("a"), ThresholdNotMet, true},
		"one of two, twice":                         {target(KindRelease, "platform", "platform"), valid("a", "a"), ThresholdNotMet, true},
		"none":                                      {target(KindRelease, "platform", "platform"), nil, Unsigned, true},
		"a key of another role":                     {target(KindRelease, "platform", "platform"), valid("os"), WrongAuthority, false},
		"a key that is only root":                   {target(KindRelease, "platform", "platform"), valid("c"), WrongAuthority, false},
		"an unknown key":                            {target(KindRelease, "platform", "platform"), unknown, WrongAuthority, false},
		"other content":                             {target(KindRelease, "platform", "platform"), slices.Concat(unknown, other), WrongDigest, false},
		"attestations only":                         {target(KindRelease, "platform", "platform"), attestation, Unsigned, true},
		"one good among bad":                        {target(KindRelease, "platform", "platform"), slices.Concat(unknown, other, attestation, valid("a", "b")), "", false},
		"all matching rules hold":                   {target(KindRelease, "platform-core", "platform"), valid("a", "b", "os"), "", false},
		"one of the matching rules doesn't":         {target(KindRelease, "platform-core", "platform"), valid("a", "b"), WrongAuthority, false},
		"without a name all rules apply":            {nameless, valid("a", "b"), WrongAuthority, false},
		"without a name and with all keys":          {nameless, valid("a", "b", "os"), "", false},
		"an image in the repositories of the rule":  {target(KindRelease, "x", "site"), valid("os"), "", false},
		"an image in another repository":            {elsewhere, valid("os"), PolicyMissing, false},
		"another product than the rule's":           {target(KindRelease, "x", "evil"), valid("a", "b", "os"), NameMismatch, false},
		"a kind without a rule":                     {target("Pod", "x", "platform"), valid("a", "b"), PolicyMissing, false},
		"a cluster that isn't governed":             {dev, valid("a", "b"), PolicyMissing, false},
		"a source without a rule":                   {otherSource, valid("os"), PolicyMissing, false},
		"bytes without a product":                   {target(KindRelease, "platform", ""), valid("a", "b"), NameMismatch, false},
		"a release signed by the os key for a node": {target(KindNodeOS, "workers", "platform"), valid("os"), NameMismatch, false},
	} {
		t.Run(name, func(t *testing.T) {
			ev, err := Evaluate(testPolicy(t, ""), tc.target, tc.found, now)
			if got := ReasonOf(err); got != tc.reason || (err == nil) != (tc.reason == "") {
				t.Fatalf("got %v, want reason %q", err, tc.reason)
			}
			if err != nil {
				if r := requireRefusal(t, err); r.Retriable() != tc.retry || r.Wanted == "" || r.Found == "" {
					t.Errorf("refusal is %+v", r)
				}
				return
			}
			if ev.Digest != tc.target.Digest || ev.Policy != "root@1" || len(ev.Signers) == 0 || len(ev.Rules) == 0 {
				t.Errorf("evidence is %+v", ev)
			}
		})
	}
}

func TestEvaluateChecksRevocationVersionAndExpiry(t *testing.T) {
	base := target(KindRelease, "platform", "platform")
	named := base
	named.WantVersion = "2.0.0"
	accepted := base
	accepted.PreviouslyAccepted = true
	late := now.AddDate(3, 0, 0)
	for name, tc := range map[string]struct {
		rest   string
		target Target
		now    time.Time
		reason Reason
	}{
		"a revoked digest":                 {"revoked: {digests: ['" + base.Digest.String() + "']}\n", base, now, Revoked},
		"a revoked digest that is running": {"revoked: {digests: ['" + base.Digest.String() + "']}\n", accepted, now, Revoked},
		"another version than requested":   {"", named, now, NameMismatch},
		"an expired policy":                {"", base, late, Expired},
		"an expired policy, running":       {"", accepted, late, ""},
		"exactly at the end of the policy": {"", base, time.Date(2027, 11, 29, 0, 0, 0, 0, time.UTC), Expired},
	} {
		if _, err := Evaluate(testPolicy(t, tc.rest), tc.target, valid("a", "b"), tc.now); ReasonOf(err) != tc.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestADocumentThatWasNotDecodedIsIgnored(t *testing.T) {
	d := &Document{
		Name: "root", Version: 1, Expires: now.AddDate(1, 0, 0), Clusters: []string{"*"}, Roles: map[string]Role{RoleRelease: {}},
		Rules: []Rule{{Match: Match{Kind: KindRelease, Name: "*"}, Product: "platform", Role: RoleRelease}},
	}
	for _, d := range []*Document{nil, d} {
		if _, err := Evaluate(d, target(KindRelease, "platform", "platform"), nil, now); ReasonOf(err) != PolicyMissing {
			t.Errorf("got %v", err)
		}
	}
}

func TestARefusalNamesTheMissingKeyAndTheCommand(t *testing.T) {
	_, err := Evaluate(testPolicy(t, ""), target(KindRelease, "platform", "platform"), valid("a"), now)
	for _, want := range []string{
		"ThresholdNotMet", "1 of 2 signatures: a", "2 of a, b (role release)",
		"lockstep release sign r.example.com/site/x@" + DigestOf([]byte("it")).String() + " --key b.key",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q isn't in: %s", want, err)
		}
	}
}

func TestMarksOnlyRise(t *testing.T) {
	d := testPolicy(t, "floors: {platform: 1.2.0}\n")
	mark := Mark{}
	for _, v := range []string{"1.3.0", "1.5.0", "1.4.0"} {
		var err error
		if mark, err = mark.Raise(d, "platform", v); err != nil {
			t.Fatal(err)
		}
	}
	if mark.Version != "1.5.0" {
		t.Errorf("the mark is %s", mark.Version)
	}
	for v, want := range map[string]Reason{"1.5.0": "", "1.6.0": "", "1.5.0-rc.1": Rollback, "1.4.9": Rollback, "1.1.9": BelowFloor, "x": NameMismatch, "": NameMismatch} {
		if err := d.CheckVersion("platform", v, mark); ReasonOf(err) != want {
			t.Errorf("version %q: %v, want %q", v, err, want)
		}
	}
	if err := d.CheckVersion("platform", "1.4.0", Mark{}); err != nil {
		t.Errorf("an allowed rollback: %v", err)
	}
}

func TestAMarkResetLowersAMarkOnce(t *testing.T) {
	old := Mark{Version: "1.5.0", Policy: 0}
	d := testPolicy(t, "markReset: {platform: 1.2.0}\n")
	if err := d.CheckVersion("platform", "1.3.0", old); err != nil {
		t.Errorf("after the reset: %v", err)
	}
	if err := d.CheckVersion("platform", "1.1.0", old); ReasonOf(err) != Rollback {
		t.Errorf("below the reset: %v", err)
	}
	risen, err := old.Raise(d, "platform", "1.4.0")
	if err != nil || risen.Version != "1.4.0" {
		t.Fatal(risen, err)
	}
	if err := d.CheckVersion("platform", "1.3.0", risen); ReasonOf(err) != Rollback {
		t.Errorf("the reset worked twice: %v", err)
	}
}

func TestSummariesAreBounded(t *testing.T) {
	ev := Evidence{Format: 1, Digest: DigestOf(nil), Product: "platform", Version: "1.0.0", Rules: []string{strings.Repeat("r", 400)}}
	for i := range 30 {
		ev.Signers = append(ev.Signers, Signer{Name: fmt.Sprint("key-", i), Fingerprint: "SHA256:" + strings.Repeat("x", 43)})
	}
	s := ev.Summary()
	var got Evidence
	if err := json.Unmarshal([]byte(s), &got); err != nil || len(s) > MaxSummary {
		t.Fatalf("%d bytes: %v", len(s), err)
	}
	if got.Cut+len(got.Signers) != 30 || got.Cut == 0 {
		t.Errorf("%d signers and %d cut", len(got.Signers), got.Cut)
	}
}

// TestAdditionalSignaturesNeverHideValidOnes checks that further signatures of a
// registry, in any order, don't change a positive decision.
func TestAdditionalSignaturesNeverHideValidOnes(t *testing.T) {
	d := testPolicy(t, "")
	rapid.Check(t, func(t *rapid.T) {
		noise := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) CheckedSignature {
			return CheckedSignature{
				Finding: rapid.SampledFrom([]Finding{Valid, UnknownKey, OtherDigest, OtherType, Unreadable, "else"}).Draw(t, "finding"),
				Key:     rapid.SampledFrom([]string{"", "a", "c", "os", "unknown"}).Draw(t, "key"),
				Seen:    now,
			}
		}), 0, 12).Draw(t, "noise")
		all := rapid.Permutation(slices.Concat(noise, valid("a", "b"))).Draw(t, "order")
		if _, err := Evaluate(d, target(KindRelease, "platform", "platform"), all, now); err != nil {
			t.Fatalf("other signatures hid valid ones: %v", err)
		}
		if _, err := Evaluate(d, target(KindRelease, "platform", "platform"), noise, now); err == nil {
			t.Fatal("accepted without key b")
		}
	})
}
