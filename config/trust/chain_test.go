// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// delivery is an envelope with its properties.
type delivery struct {
	raw     []byte
	version int64
	digest  Digest
	by      []string // names of the keys that signed it
}

// signedBy reports whether the threshold of a role signed the delivery.
func (d delivery) signedBy(doc *Document, role string) bool {
	n := 0
	for _, k := range doc.Roles[role].Keys {
		if slices.Contains(d.by, k) {
			n++
		}
	}
	return doc.Roles[role].Threshold > 0 && n >= doc.Roles[role].Threshold
}

// deliveries returns envelopes of versions 1 to 4 in variants, one of them with a
// smaller root, each signed by several sets of keys.
func deliveries(tb testing.TB, c chain) []delivery {
	tb.Helper()
	var out []delivery
	for version := 1; version <= 4; version++ {
		plain, other, small := c.at(version), c.at(version), c.at(version)
		other.rest = "floors: {platform: 1.0.0}\n"
		small.roles = "  root: {keys: [a], threshold: 1}\n  recovery: {keys: [vault], threshold: 1, delay: 24h}\n"
		for _, s := range []source{plain, other, small} {
			text := s.text()
			for _, keys := range [][]testKey{{c.a, c.b}, {c.a}, {c.a, c.recovery}, {c.b, c.c, c.recovery}, {c.recovery}, {c.unknown}} {
				d := delivery{raw: seal(tb, text, keys...), version: int64(version), digest: DigestOf(text)}
				for _, k := range keys {
					d.by = append(d.by, k.name)
				}
				out = append(out, d)
			}
		}
	}
	return out
}

// TestAnyDeliveriesChangeThePolicyOnlyByItsRules delivers arbitrary envelopes at
// arbitrary times: the policy changes only to the next version, and only if the
// root signed it, or recovery did and its delay is over. The new root must have
// signed in both cases.
func TestAnyDeliveriesChangeThePolicyOnlyByItsRules(t *testing.T) {
	c := newChain(t)
	all := deliveries(t, c)
	rapid.Check(t, func(t *rapid.T) {
		text := c.at(1).text()
		cur, err := Pin(all[0].raw, DigestOf(text), now)
		if err != nil {
			t.Fatal(err)
		}
		clock := now
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			clock = clock.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "hours")) * time.Hour)
			settled := cur.Settle(clock)
			d := rapid.SampledFrom(all).Draw(t, "delivery")
			next, err := Accept(&cur, d.raw, clock)
			if msg := judge(settled, next, d, err); msg != "" {
				t.Fatal(msg)
			}
			b, err := next.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if cur, err = Load(b); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// judge checks the effect of a delivery; before is settled.
func judge(before, after Accepted, d delivery, err error) string {
	changed := after.Document.digest != before.Document.digest
	pending := after.Pending != nil && (before.Pending == nil || after.Pending.Document.digest != before.Pending.Document.digest)
	root, recovery := d.signedBy(before.Document, RoleRoot), d.signedBy(before.Document, RoleRecovery)
	next := d.version == before.Document.Version+1
	switch {
	case changed && (after.Document.digest != d.digest || !next || !root || !d.signedBy(after.Document, RoleRoot)):
		return fmt.Sprintf("version %d, signed by %v, replaced %d", d.version, d.by, before.Document.Version)
	case pending && (after.Pending.Document.digest != d.digest || !next || !recovery || !d.signedBy(after.Pending.Document, RoleRoot)):
		return fmt.Sprintf("version %d, signed by %v, is pending", d.version, d.by)
	case (changed || pending) && err != nil:
		return "a refusal changed the policy"
	case !changed && !pending && err == nil && d.digest != before.Document.digest && (before.Pending == nil || d.digest != before.Pending.Document.digest):
		return fmt.Sprintf("version %d was neither refused nor accepted", d.version)
	}
	return ""
}
