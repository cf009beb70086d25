// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
)

// rootKey signs trust documents.
type rootKey struct {
	*ecdsa.PrivateKey
	text string
}

func newRootKey(t *testing.T) rootKey {
	t.Helper()
	key, err := mtls.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return rootKey{key, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))}
}

func (k rootKey) Sign(message []byte) ([]byte, error) {
	sum := sha256.Sum256(message)
	return ecdsa.SignASN1(rand.Reader, k.PrivateKey, sum[:])
}

func (k rootKey) Fingerprint() string { return "test" }

// envelope returns version n of a policy with one root key, signed by signers.
func envelope(t *testing.T, n int, root rootKey, signers ...trust.SigningKey) ([]byte, trust.Digest) {
	t.Helper()
	text := fmt.Sprintf(`name: root
version: %d
expires: %s
clusters: ["*"]
keys:
- name: k
  pem: |
    %s
roles:
  root: {keys: [k], threshold: 1}
  os: {keys: [k], threshold: 1}
rules:
- {match: {kind: NodeOS, name: "*"}, product: platform-os, role: os}
`, n, start.AddDate(1, 0, 0).Format(time.RFC3339), strings.ReplaceAll(strings.TrimSpace(root.text), "\n", "\n    "))
	sealed, err := trust.Seal([]byte(text), signers...)
	if err != nil {
		t.Fatal(err)
	}
	return sealed, trust.DigestOf([]byte(text))
}

func openTrust(t *testing.T, dir string) *TrustStore {
	t.Helper()
	s, err := OpenTrustStore(dir, func() time.Time { return start })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func version(t *testing.T, s *TrustStore) int64 {
	t.Helper()
	accepted, ok := s.Current()
	if !ok {
		return 0
	}
	return accepted.Document.Version
}

func TestTrustDocumentIsReplacedOnlyByASignedSuccessor(t *testing.T) {
	dir, root, thief := t.TempDir(), newRootKey(t), newRootKey(t)
	s := openTrust(t, dir)
	first, digest := envelope(t, 1, root, root)
	if _, _, err := s.Deliver(first); err == nil {
		t.Error("a host without a document accepted one by Deliver")
	}
	if err := s.Pin(first, trust.DigestOf([]byte("another"))); err == nil {
		t.Error("a document with another digest was pinned")
	}
	if err := s.Pin(first, digest); err != nil {
		t.Fatal(err)
	}
	next, _ := envelope(t, 2, root, root)
	gap, _ := envelope(t, 3, root, root)
	forged, _ := envelope(t, 2, thief, thief)
	for name, raw := range map[string][]byte{"a gap": gap, "a forged one": forged, "an invalid one": []byte("{}")} {
		if _, _, err := s.Deliver(raw); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, changed, err := s.Deliver(next); err != nil || !changed {
		t.Fatalf("the successor = %v, %v", changed, err)
	}
	if _, changed, err := s.Deliver(next); err != nil || changed {
		t.Errorf("the same again = %v, %v; want no change", changed, err)
	}
	if _, _, err := s.Deliver(first); err == nil {
		t.Error("an older document was accepted")
	}
	again := openTrust(t, dir)
	if err := again.Pin(first, digest); err != nil {
		t.Fatal(err)
	}
	if got := version(t, again); got != 2 {
		t.Errorf("version after a restart is %d, want 2: Pin must not replace it", got)
	}
}

func TestDamagedTrustDocumentFallsBackToTheOtherCopy(t *testing.T) {
	root := newRootKey(t)
	first, digest := envelope(t, 1, root, root)
	for i := range 2 {
		dir := t.TempDir()
		if err := openTrust(t, dir).Pin(first, digest); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, fmt.Sprintf("trust.%d", i))
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data[:len(data)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		if got := version(t, openTrust(t, dir)); got != 1 {
			t.Errorf("with copy %d damaged the version is %d", i, got)
		}
		for j := range 2 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("trust.%d", j)), []byte(`{"format":1}`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := OpenTrustStore(dir, func() time.Time { return start }); err == nil {
			t.Error("two damaged copies were treated as no document")
		}
	}
}

func TestT5AnyCallerDeliversTrustButCannotForgeIt(t *testing.T) {
	b := newEnv(t)
	root, thief := newRootKey(t), newRootKey(t)
	first, digest := envelope(t, 1, root, root)
	if err := b.trust.Pin(first, digest); err != nil {
		t.Fatal(err)
	}
	client := b.client("reconciler", mtls.RoleReconciler)
	forged, _ := envelope(t, 2, thief, thief)
	_, err := client.DeliverTrust(t.Context(), &agentpb.DeliverTrustRequest{Envelope: forged})
	if st, refusal := refusalOf(t, err); st.Code() != codes.FailedPrecondition || refusal.GetReason() != "PolicyChangeRefused" {
		t.Errorf("a forged document = %v", err)
	}
	next, nextDigest := envelope(t, 2, root, root)
	answer, err := client.DeliverTrust(t.Context(), &agentpb.DeliverTrustRequest{Envelope: next})
	if err != nil || answer.GetVersion() != 2 || answer.GetDigest() != nextDigest.String() {
		t.Fatalf("the successor = %v, %v", answer, err)
	}
	facts, err := client.GetFacts(t.Context(), &agentpb.GetFactsRequest{})
	if err != nil || facts.GetTrustVersion() != 2 {
		t.Errorf("facts have trust version %d, %v", facts.GetTrustVersion(), err)
	}
}
