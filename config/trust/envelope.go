// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// PayloadType is the DSSE payload type of a trust document.
const PayloadType = "application/vnd.lockstep.trust.v1+yaml"

// The limits of an envelope.
const (
	maxEnvelope   = 256 << 10 // the limit of TrustPolicy.spec.envelope
	maxSignatures = 64
	maxSignature  = 16 << 10
)

// SigningKey signs bytes with one key.
type SigningKey interface {
	// Sign returns the signature over message: for SSH keys an SSHSIG blob of
	// Namespace, else the raw signature (ECDSA: ASN.1 over SHA-256).
	Sign(message []byte) ([]byte, error)
	// Fingerprint returns the fingerprint, as Key.Fingerprint does.
	Fingerprint() string
}

// envelope is a decoded DSSE envelope.
type envelope struct {
	payload    []byte
	signatures [][]byte
}

// Seal returns a signed envelope of an encoded document, which must decode.
func Seal(document []byte, signers ...SigningKey) ([]byte, error) {
	if _, err := Decode(document); err != nil {
		return nil, err
	}
	e := dsse.Envelope{
		PayloadType: PayloadType,
		Payload:     base64.StdEncoding.EncodeToString(document),
		Signatures:  []dsse.Signature{},
	}
	return sign(e, document, signers)
}

// AddSignatures adds signatures to an envelope and replaces earlier ones by the
// same keys.
func AddSignatures(raw []byte, signers ...SigningKey) ([]byte, error) {
	if _, err := openEnvelope(raw, PayloadType); err != nil {
		return nil, err
	}
	var e dsse.Envelope
	if err := json.Unmarshal(raw, &e); err != nil {
		return nil, fmt.Errorf("decode trust envelope: %w", err)
	}
	document, err := e.DecodeB64Payload()
	if err != nil {
		return nil, fmt.Errorf("decode trust envelope: %w", err)
	}
	return sign(e, document, signers)
}

// sign adds one signature per signer and returns the envelope as JSON.
func sign(e dsse.Envelope, payload []byte, signers []SigningKey) ([]byte, error) {
	pae := dsse.PAE(e.PayloadType, payload)
	for _, s := range signers {
		sig, err := s.Sign(pae)
		if err != nil {
			return nil, fmt.Errorf("sign with %s: %w", s.Fingerprint(), err)
		}
		e.Signatures = slices.DeleteFunc(e.Signatures, func(old dsse.Signature) bool { return old.KeyID == s.Fingerprint() })
		e.Signatures = append(e.Signatures, dsse.Signature{KeyID: s.Fingerprint(), Sig: base64.StdEncoding.EncodeToString(sig)})
	}
	out, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode trust envelope: %w", err)
	}
	return append(out, '\n'), nil
}

// OpenUnverified returns the document in an envelope without verifying
// signatures: only for display and editing.
func OpenUnverified(raw []byte) (document []byte, err error) {
	e, err := openEnvelope(raw, PayloadType)
	if err != nil {
		return nil, err
	}
	return e.payload, nil
}

// openEnvelope decodes a DSSE envelope strictly and within limits. Key ids, mere
// hints in DSSE, are ignored: each signature is tried with each key.
func openEnvelope(raw []byte, payloadType string) (envelope, error) {
	if len(raw) > maxEnvelope {
		return envelope{}, fmt.Errorf("decode envelope: %d bytes, at most %d are allowed", len(raw), maxEnvelope)
	}
	var e dsse.Envelope
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return envelope{}, fmt.Errorf("decode envelope: not DSSE JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return envelope{}, errors.New("decode envelope: unexpected data after it")
	}
	if e.PayloadType != payloadType {
		return envelope{}, fmt.Errorf("decode envelope: payload type is %q, must be %q", e.PayloadType, payloadType)
	}
	if len(e.Signatures) > maxSignatures {
		return envelope{}, fmt.Errorf("decode envelope: %d signatures, at most %d are allowed", len(e.Signatures), maxSignatures)
	}
	payload, err := base64.StdEncoding.DecodeString(e.Payload)
	if err != nil {
		return envelope{}, fmt.Errorf("decode envelope payload: %w", err)
	}
	out := envelope{payload: payload}
	for _, s := range e.Signatures {
		sig, err := base64.StdEncoding.DecodeString(s.Sig)
		if err != nil || len(sig) > maxSignature {
			continue // a bad signature must not hide a good one
		}
		out.signatures = append(out.signatures, sig)
	}
	return out, nil
}

// signedBy returns the keys of a role that signed the envelope, each once,
// without keys that are revoked or not valid now.
func (e envelope) signedBy(d *Document, role string, now time.Time) []Key {
	pae := dsse.PAE(PayloadType, e.payload)
	var out []Key
	for _, k := range d.RoleKeys(role) {
		if !k.Covers(now) {
			continue
		}
		p := d.keys[k.Name]
		if slices.ContainsFunc(e.signatures, func(sig []byte) bool { return p.verify(pae, sig) }) {
			out = append(out, k)
		}
	}
	return out
}

// SealAs returns a signed DSSE envelope of any payload and type. If raw is an
// envelope of the same payload, its signatures are kept.
func SealAs(payloadType string, payload, raw []byte, signers ...SigningKey) ([]byte, error) {
	e := dsse.Envelope{
		PayloadType: payloadType, Payload: base64.StdEncoding.EncodeToString(payload), Signatures: []dsse.Signature{},
	}
	if len(raw) > 0 {
		old, err := openEnvelope(raw, payloadType)
		if err == nil && bytes.Equal(old.payload, payload) {
			if err := json.Unmarshal(raw, &e); err != nil {
				return nil, fmt.Errorf("decode envelope: %w", err)
			}
		}
	}
	return sign(e, payload, signers)
}

// OpenSigned decodes a DSSE envelope and returns its payload and the names of the
// given keys that signed it. Evaluate decides whether they suffice.
func (d *Document) OpenSigned(payloadType string, raw []byte, keys []Key) (payload []byte, signedBy []string, err error) {
	e, err := openEnvelope(raw, payloadType)
	if err != nil {
		return nil, nil, err
	}
	pae := dsse.PAE(payloadType, e.payload)
	for _, k := range keys {
		p := d.keys[k.Name]
		if slices.ContainsFunc(e.signatures, func(sig []byte) bool { return p.verify(pae, sig) }) {
			signedBy = append(signedBy, k.Name)
		}
	}
	return e.payload, signedBy, nil
}

// PAE returns the bytes that a DSSE signature covers.
func PAE(payloadType string, payload []byte) []byte { return dsse.PAE(payloadType, payload) }
