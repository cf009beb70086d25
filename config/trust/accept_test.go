// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// chain is a policy whose root is 2 of a, b, c (PEM, Ed25519, SSH), with a
// recovery key.
type chain struct {
	a, b, c, recovery, unknown testKey
}

func newChain(tb testing.TB) chain {
	tb.Helper()
	return chain{ecdsaKey(tb, "a"), edKey(tb, "b"), sshKey(tb, "c"), ecdsaKey(tb, "vault"), ecdsaKey(tb, "unknown")}
}

// at returns the source of a version.
func (c chain) at(version int) source {
	return source{
		version: version, keys: []testKey{c.a, c.b, c.c, c.recovery},
		roles: "  root: {keys: [a, b, c], threshold: 2}\n  recovery: {keys: [vault], threshold: 1, delay: 24h}\n",
	}
}

// pinned returns an accepted version 1.
func (c chain) pinned(tb testing.TB) Accepted {
	tb.Helper()
	text := c.at(1).text()
	got, err := Pin(seal(tb, text, c.a, c.c), DigestOf(text), now)
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

func TestTheFirstRevisionIsPinnedByItsDigest(t *testing.T) {
	c := newChain(t)
	text := c.at(1).text()
	if _, err := Pin(seal(t, text, c.a, c.b), DigestOf(text), now); err != nil {
		t.Error(err)
	}
	for name, tc := range map[string]struct {
		raw    []byte
		digest Digest
		now    time.Time
	}{
		"another digest":               {seal(t, text, c.a, c.b), DigestOf(nil), now},
		"below its own root threshold": {seal(t, text, c.a), DigestOf(text), now},
		"one root key twice":           {seal(t, text, c.a, c.a), DigestOf(text), now},
		"keys of other roles":          {seal(t, text, c.a, c.recovery, c.unknown), DigestOf(text), now},
		"after its expiry":             {seal(t, text, c.a, c.b), DigestOf(text), now.AddDate(2, 0, 0)},
		"another JSON object":          {[]byte("{}"), DigestOf(text), now},
		"a document, no envelope":      {text, DigestOf(text), now},
	} {
		if got, err := Pin(tc.raw, tc.digest, tc.now); ReasonOf(err) != PolicyChangeRefused || got.Document != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Accept(nil, seal(t, text, c.a, c.b), now); ReasonOf(err) != PolicyMissing {
		t.Errorf("without a pinned policy: %v", err)
	}
}

func TestASuccessorNeedsBothRoots(t *testing.T) {
	c := newChain(t)
	fresh := []testKey{ecdsaKey(t, "d"), edKey(t, "e")}
	next := c.at(2)
	next.keys = append(next.keys, fresh...)
	next.roles = "  root: {keys: [c, d, e], threshold: 2}\n  recovery: {keys: [vault], threshold: 1, delay: 24h}\n"
	text := next.text()
	for name, tc := range map[string]struct {
		keys []testKey
		ok   bool
	}{
		"both":                    {[]testKey{c.a, c.b, fresh[0], fresh[1]}, true},
		"one key that is in both": {[]testKey{c.a, c.c, fresh[0]}, true},
		"the old root only":       {[]testKey{c.a, c.b}, false},
		"the new root only":       {fresh, false},
		"half of each":            {[]testKey{c.a, fresh[0]}, false},
		"unknown keys":            {[]testKey{c.unknown}, false},
		"no key":                  {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			cur := c.pinned(t)
			got, err := Accept(&cur, seal(t, text, tc.keys...), now)
			if (err == nil) != tc.ok {
				t.Fatalf("error is %v", err)
			}
			if want := map[bool]int64{true: 2, false: 1}[tc.ok]; got.Document.Version != want {
				t.Errorf("version %d is active", got.Document.Version)
			}
			if !tc.ok {
				if r := requireRefusal(t, err); r.Reason() != "PolicyChangeRefused" || r.Found == "" || r.Wanted == "" || len(r.Fix) == 0 {
					t.Errorf("the refusal lacks details: %+v", r)
				}
			}
		})
	}
}

func TestVersionsGoUpByOne(t *testing.T) {
	c := newChain(t)
	cur := c.pinned(t)
	other := c.at(1)
	other.rest = "floors: {platform: 1.0.0}\n"
	renamed := c.at(2)
	renamed.name = "other"
	over := c.at(2)
	over.expires = "2026-11-29T00:00:00Z"
	for name, s := range map[string]source{
		"a gap": c.at(3), "the same version with other content": other, "another name": renamed, "an expired one": over,
	} {
		got, err := Accept(&cur, seal(t, s.text(), c.a, c.b), now)
		if ReasonOf(err) != PolicyChangeRefused || got.Document.digest != cur.Document.digest {
			t.Errorf("%s: %v", name, err)
		}
	}
	same, err := Accept(&cur, cur.Envelope, now)
	if err != nil || same.Document.digest != cur.Document.digest {
		t.Errorf("the same revision again: %v", err)
	}
	for v := 2; v <= 4; v++ {
		next, err := Accept(&cur, seal(t, c.at(v).text(), c.b, c.c), now)
		if err != nil {
			t.Fatal(err)
		}
		cur = next
	}
	if _, err := Accept(&cur, seal(t, c.at(2).text(), c.b, c.c), now); ReasonOf(err) != PolicyChangeRefused {
		t.Errorf("a replay: %v", err)
	}
}

func TestARevokedRootKeyDoesntCount(t *testing.T) {
	c := newChain(t)
	text := c.at(1)
	text.rest = "revoked: {keys: [a]}\n"
	cur, err := Pin(seal(t, text.text(), c.b, c.c), DigestOf(text.text()), now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Accept(&cur, seal(t, c.at(2).text(), c.a, c.b), now); ReasonOf(err) != PolicyChangeRefused {
		t.Errorf("got %v", err)
	}
}

func TestRecoveryWaitsForItsDelayAndTheRootCanStopIt(t *testing.T) {
	c := newChain(t)
	cur := c.pinned(t)
	fresh := []testKey{ecdsaKey(t, "d"), ecdsaKey(t, "e")}
	next := c.at(2)
	next.keys = append(next.keys, fresh...)
	next.roles = "  root: {keys: [d, e], threshold: 2}\n"
	raw := seal(t, next.text(), c.recovery, fresh[0], fresh[1])

	pending, err := Accept(&cur, raw, now)
	if err != nil {
		t.Fatal(err)
	}
	if pending.Document.Version != 1 || pending.Pending == nil || !pending.Pending.Effective.Equal(now.Add(24*time.Hour)) {
		t.Fatalf("got %+v", pending)
	}
	if diff := cmp.Diff([]string{"vault"}, pending.Pending.SignedBy); diff != "" {
		t.Error(diff)
	}
	again, err := Accept(&pending, raw, now.Add(23*time.Hour))
	if err != nil || !again.Pending.Effective.Equal(pending.Pending.Effective) {
		t.Errorf("a second delivery changed the time: %v, %v", again.Pending, err)
	}
	if got := pending.Settle(now.Add(24 * time.Hour)); got.Document.Version != 2 || got.Pending != nil {
		t.Errorf("after the delay: %+v", got)
	}
	stopped, err := Accept(&pending, seal(t, c.at(2).text(), c.a, c.b), now.Add(time.Hour))
	if err != nil || stopped.Pending != nil || len(stopped.Document.Roles[RoleRoot].Keys) != 3 {
		t.Errorf("the revision of the root didn't stop it: %v", err)
	}
	if _, err := Accept(&cur, seal(t, next.text(), c.recovery, fresh[0]), now); ReasonOf(err) != PolicyChangeRefused {
		t.Errorf("recovery into a root that can't sign: %v", err)
	}
}

func TestManualReplacementsAreRecorded(t *testing.T) {
	c := newChain(t)
	cur := c.pinned(t)
	other := c.at(1)
	other.name = "rebuilt"
	got, err := Replace(cur, seal(t, other.text(), c.a, c.b), DigestOf(other.text()), now)
	if err != nil {
		t.Fatal(err)
	}
	want := []Replacement{{Old: cur.Document.digest, New: got.Document.digest, Time: now}}
	if diff := cmp.Diff(want, got.Replacements); diff != "" {
		t.Error(diff)
	}
	next := c.at(2)
	next.name = "rebuilt"
	after, err := Accept(&got, seal(t, next.text(), c.a, c.b), now)
	if err != nil || len(after.Replacements) != 1 {
		t.Errorf("the successor lost the record: %v", err)
	}
}

func TestAcceptedSurvivesMarshalAndLoad(t *testing.T) {
	c := newChain(t)
	cur := c.pinned(t)
	if _, err := Accept(&cur, seal(t, c.at(2).text(), c.recovery, c.a, c.a), now); err == nil {
		t.Fatal("one root key and the recovery key were accepted")
	}
	next := c.at(2)
	next.roles = "  root: {keys: [a], threshold: 1}\n"
	pending, err := Accept(&cur, seal(t, next.text(), c.recovery, c.a), now)
	if err != nil {
		t.Fatal(err)
	}
	b, err := pending.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Load(b)
	if err != nil {
		t.Fatal(err)
	}
	if got.Document.digest != cur.Document.digest || got.Pending == nil || got.Pending.Document.Version != 2 || !got.Pending.Effective.Equal(pending.Pending.Effective) {
		t.Errorf("got %+v", got)
	}
	for name, bad := range map[string]string{
		"another format": strings.Replace(string(b), `"format":1`, `"format":9`, 1),
		"another digest": strings.Replace(string(b), cur.Document.digest.Hex(), strings.Repeat("0", 64), 1),
		"no JSON":        "x",
	} {
		if _, err := Load([]byte(bad)); err == nil {
			t.Errorf("%s was loaded", name)
		}
	}
}

func TestASignatureForAnotherPurposeDoesntCount(t *testing.T) {
	c := newChain(t)
	text := c.at(1).text()
	good := seal(t, text, c.a, c.c)
	forged := func(change func(e *dsse.Envelope)) []byte {
		var e dsse.Envelope
		if err := json.Unmarshal(good, &e); err != nil {
			t.Fatal(err)
		}
		change(&e)
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	asGit, err := c.c.signAs(PAE(PayloadType, text), "git")
	if err != nil {
		t.Fatal(err)
	}
	bare, err := c.a.Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{
		"an SSH signature made for Git": forged(func(e *dsse.Envelope) { e.Signatures[1].Sig = base64.StdEncoding.EncodeToString(asGit) }),
		"one over the bare document":    forged(func(e *dsse.Envelope) { e.Signatures[0].Sig = base64.StdEncoding.EncodeToString(bare) }),
		"another payload type":          forged(func(e *dsse.Envelope) { e.PayloadType = "application/vnd.in-toto+json" }),
		"another document":              forged(func(e *dsse.Envelope) { e.Payload = base64.StdEncoding.EncodeToString(c.at(2).text()) }),
	} {
		if _, err := Pin(raw, DigestOf(text), now); ReasonOf(err) != PolicyChangeRefused {
			t.Errorf("%s: %v", name, err)
		}
	}
	noisy := forged(func(e *dsse.Envelope) {
		e.Signatures = slices.Insert(e.Signatures, 0, dsse.Signature{KeyID: e.Signatures[0].KeyID, Sig: "AAAA"}, dsse.Signature{Sig: "%"})
	})
	if _, err := Pin(noisy, DigestOf(text), now); err != nil {
		t.Errorf("bad signatures hid good ones: %v", err)
	}
}

func TestSealKeepsOtherSignaturesAndTheExactBytes(t *testing.T) {
	c := newChain(t)
	text := c.at(1).text()
	raw, err := Seal(text, c.a)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = AddSignatures(raw, c.b); err != nil {
		t.Fatal(err)
	}
	if raw, err = AddSignatures(raw, c.b); err != nil {
		t.Fatal(err)
	}
	got, err := OpenUnverified(raw)
	if err != nil || string(got) != string(text) {
		t.Errorf("the bytes changed: %v", err)
	}
	if n := strings.Count(string(raw), `"keyid"`); n != 2 {
		t.Errorf("%d signatures", n)
	}
	if _, err := Pin(raw, DigestOf(text), now); err != nil {
		t.Error(err)
	}
	if _, err := Seal([]byte("name: x"), c.a); err == nil {
		t.Error("an invalid document was signed")
	}
}

func FuzzAccept(f *testing.F) {
	c := newChain(f)
	cur := c.pinned(f)
	f.Add(cur.Envelope)
	f.Add(seal(f, c.at(2).text(), c.a))
	f.Add([]byte(`{"payloadType":"application/vnd.lockstep.trust.v1+yaml","payload":"","signatures":[]}`))
	f.Add([]byte(`{"payloadType":"","payload":"!","signatures":[{"keyid":"","sig":"!"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := Accept(&cur, raw, now)
		if got.Document.Digest() != cur.Document.Digest() {
			t.Errorf("an envelope without root signatures was accepted: %q, %v", raw, err)
		}
	})
}
