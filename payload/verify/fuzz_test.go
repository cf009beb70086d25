// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"strings"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/config/trust"
)

// fuzzKey is a public key without a known private key.
const fuzzKey = `-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEbd7fVanZTHB/KoyuI8U0o5W7B2z+
/fkY5fBh6/gtRNtM1rplakGlujsQHqr7JTQPzL2jKw8KSdCkTJS4jxDbPA==
-----END PUBLIC KEY-----
`

func fuzzChecker(f *testing.F) *checker {
	f.Helper()
	doc, err := trust.Decode([]byte(`name: root
version: 1
expires: 2027-11-29T00:00:00Z
clusters: ["*"]
keys:
- name: k
  pem: |
    ` + strings.ReplaceAll(strings.TrimSpace(fuzzKey), "\n", "\n    ") + `
roles:
  root: {keys: [k], threshold: 1}
  release: {keys: [k], threshold: 1}
rules:
- {match: {kind: ClusterRelease, name: "*"}, product: p, role: release}
`))
	if err != nil {
		f.Fatal(err)
	}
	c, err := newChecker(doc, trust.Target{Kind: trust.KindRelease, Product: "p", Digest: trust.DigestOf(nil)},
		func(trust.Digest) time.Time { return time.Time{} })
	if err != nil || len(c.keys) != 1 {
		f.Fatal(len(c.keys), err)
	}
	return c
}

// FuzzMaterial checks that no input is a valid signature of fuzzKey or makes the
// checker panic.
func FuzzMaterial(f *testing.F) {
	c := fuzzChecker(f)
	digest := trust.DigestOf(nil)
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"x"}},`+
		`"dsseEnvelope":{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"AAAA"}]}}`), "", true)
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{},"dsseEnvelope":{}}`), "", true)
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"certificate":{"rawBytes":"AAAA"},"tlogEntries":[{}]},"messageSignature":{}}`), "", true)
	f.Add([]byte(`null`), "", true)
	f.Add([]byte(`{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":"`+digest.String()+`"},"type":"cosign container image signature"},"optional":null}`), "AAAA", false)
	f.Fuzz(func(t *testing.T, b []byte, sig string, bundle bool) {
		m := material{digest: trust.DigestOf(b), bundle: bundle, bytes: b, signature: sig}
		got := c.check(t.Context(), m)
		if got.Finding == trust.Valid || got.Finding == trust.OtherDigest {
			t.Errorf("%q is %s of key %s", b, got.Finding, got.Key)
		}
		_ = m.claim()
	})
}
