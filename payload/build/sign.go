// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// Constants of cosign's formats.
const (
	typeBundle        = verify.TypeBundlePrefix + ".v0.3+json"
	annotationContent = "dev.sigstore.bundle.content"
	claimType         = "cosign container image signature"

	maxLegacySignatures = 16
	maxMaterial         = 1 << 20
)

// Format is a signature format of cosign.
type Format string

// The formats.
const (
	// Legacy is a layer under the tag sha256-<hex>.sig.
	Legacy Format = "legacy"
	// Bundle is a Sigstore bundle, pushed as a referrer of the image.
	Bundle Format = "bundle"
)

// Formats parses the value of a flag: legacy, bundle, or both, the default.
func Formats(s string) ([]Format, error) {
	switch s {
	case "", "both":
		return []Format{Legacy, Bundle}, nil
	case string(Legacy), string(Bundle):
		return []Format{Format(s)}, nil
	}
	return nil, fmt.Errorf("invalid format %q: must be legacy, bundle or both", s)
}

// Sign signs an existing digest in a repository and pushes the signatures, which
// cosign 2.6 can verify. It returns the digests of the signature manifests, for
// spec.desired.signatures.
func (p *Publisher) Sign(ctx context.Context, repo string, d trust.Digest, k *Key, formats []Format) ([]trust.Digest, error) {
	if k.ssh != nil {
		return nil, errors.New("sign: OpenSSH keys can't sign images; use a key from `lockstep trust init` or `cosign generate-key-pair`")
	}
	m, err := p.client.Manifest(ctx, repo, d)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	var out []trust.Digest
	for _, f := range formats {
		var s trust.Digest
		if f == Legacy {
			s, err = p.signLegacy(ctx, repo, d, k)
		} else {
			s, err = p.signBundle(ctx, repo, m, k)
		}
		if err != nil {
			return out, fmt.Errorf("sign %s@%s (%s): %w", repo, d, f, err)
		}
		out = append(out, s)
	}
	return out, nil
}

// claim is the payload of a legacy signature (containers-signature.5).
type claim struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

// signLegacy adds a layer to the signature manifest unless it has a signature of
// the key.
func (p *Publisher) signLegacy(ctx context.Context, repo string, d trust.Digest, k *Key) (trust.Digest, error) {
	layers, old, err := p.legacyLayers(ctx, repo, d)
	if err != nil {
		return "", err
	}
	var c claim
	c.Critical.Identity.Reference, c.Critical.Image.Digest, c.Critical.Type = repo, d.String(), claimType
	payload, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	if signedAlready(layers, payload, k) {
		return old, nil
	}
	if len(layers) >= maxLegacySignatures {
		return "", fmt.Errorf("the image has %d legacy signatures, the maximum; remove one or use --format bundle", len(layers))
	}
	sig, err := k.signRaw(payload)
	if err != nil {
		return "", err
	}
	l := bytesBlob(verify.TypeSimpleSigning, payload)
	l.Annotations = map[string]string{verify.AnnotationSignature: base64.StdEncoding.EncodeToString(sig)}
	layers = append(layers, l)
	config, err := imageConfig(layers)
	if err != nil {
		return "", err
	}
	a, err := newArtifact(manifest{}, registry.TypeImageConfig, config, layers)
	if err != nil {
		return "", err
	}
	return a.digest(), p.write(ctx, repo, verify.LegacyTag(d), a)
}

// legacyLayers returns the existing signatures and the digest of their manifest.
func (p *Publisher) legacyLayers(ctx context.Context, repo string, d trust.Digest) ([]blob, trust.Digest, error) {
	found, err := p.client.Tagged(ctx, repo, verify.LegacyTag(d))
	if errors.Is(err, registry.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	m := found[len(found)-1] // the registry's, after those of mirrors
	var out []blob
	for _, l := range m.Layers {
		b, err := p.client.Bytes(ctx, repo, l, maxMaterial)
		if err != nil {
			return nil, "", err
		}
		out = append(out, blob{Descriptor: l, open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }})
	}
	return out, m.Digest, nil
}

// signedAlready reports whether a layer is the key's signature of the payload.
func signedAlready(layers []blob, payload []byte, k *Key) bool {
	v, err := signature.LoadVerifier(k.signer.Public(), crypto.SHA256)
	if err != nil {
		return false
	}
	for _, l := range layers {
		sig, err := base64.StdEncoding.DecodeString(l.Annotations[verify.AnnotationSignature])
		if err == nil && l.Digest == trust.DigestOf(payload) &&
			v.VerifySignature(bytes.NewReader(sig), bytes.NewReader(payload)) == nil {
			return true
		}
	}
	return false
}

// imageConfig returns the config of a signature manifest as cosign writes it,
// since some registries validate it.
func imageConfig(layers []blob) ([]byte, error) {
	var c struct {
		Architecture string `json:"architecture"`
		Created      string `json:"created"`
		OS           string `json:"os"`
		RootFS       struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		Config struct{} `json:"config"`
	}
	c.Created, c.RootFS.Type = "0001-01-01T00:00:00Z", "layers"
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.Digest.String())
	}
	return json.Marshal(c)
}

// sigstoreBundle is a Sigstore bundle of version 0.3, signed with a key.
type sigstoreBundle struct {
	MediaType            string `json:"mediaType"`
	VerificationMaterial struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	Envelope struct {
		Payload     []byte       `json:"payload"`
		PayloadType string       `json:"payloadType"`
		Signatures  []bundledSig `json:"signatures"`
	} `json:"dsseEnvelope"`
}

type bundledSig struct {
	Sig []byte `json:"sig"`
}

func (p *Publisher) signBundle(ctx context.Context, repo string, m registry.Manifest, k *Key) (trust.Digest, error) {
	raw, err := MakeBundle(m.Digest, k)
	if err != nil {
		return "", err
	}
	return p.pushBundle(ctx, repo, m, raw, verify.PredicateSign)
}

// MakeBundle signs a digest and returns the Sigstore bundle.
func MakeBundle(d trust.Digest, k *Key) ([]byte, error) {
	statement, err := json.Marshal(verify.NewStatement(d))
	if err != nil {
		return nil, err
	}
	return makeBundle(statement, k)
}

// Attest signs an in-toto statement about a digest, with the given predicate type
// and an empty predicate, and pushes it as a bundle. Verification of a release
// ignores attestations.
func (p *Publisher) Attest(ctx context.Context, repo string, d trust.Digest, k *Key, predicate string) (trust.Digest, error) {
	m, err := p.client.Manifest(ctx, repo, d)
	if err != nil {
		return "", fmt.Errorf("attest: %w", err)
	}
	s := verify.NewStatement(d)
	s.PredicateType = predicate
	statement, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	raw, err := makeBundle(statement, k)
	if err != nil {
		return "", err
	}
	return p.pushBundle(ctx, repo, m, raw, predicate)
}

// pushBundle pushes a bundle as a referrer of an image.
func (p *Publisher) pushBundle(ctx context.Context, repo string, m registry.Manifest, raw []byte, predicate string) (trust.Digest, error) {
	a, err := newArtifact(manifest{
		ArtifactType: typeBundle,
		Subject:      &registry.Descriptor{MediaType: m.Type, Digest: m.Digest, Size: int64(len(m.Bytes))},
		Annotations:  map[string]string{annotationContent: "dsse-envelope", verify.AnnotationPredicate: predicate},
	}, registry.TypeEmpty, []byte(emptyConfig), []blob{bytesBlob(typeBundle, raw)})
	if err != nil {
		return "", err
	}
	return a.digest(), p.write(ctx, repo, "", a)
}

func makeBundle(statement []byte, k *Key) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k.signer.Public())
	if err != nil {
		return nil, err
	}
	sig, err := k.signRaw(trust.PAE(verify.TypeInToto, statement))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	var b sigstoreBundle
	b.MediaType = typeBundle
	b.VerificationMaterial.PublicKey.Hint = base64.StdEncoding.EncodeToString(sum[:])
	b.Envelope.Payload, b.Envelope.PayloadType = statement, verify.TypeInToto
	b.Envelope.Signatures = []bundledSig{{Sig: sig}}
	return json.Marshal(b)
}

// SignTree signs the digest of a payload path and returns the new content of
// verify.SignatureFile. It keeps signatures of the same digest in old, the
// current content or nil.
func SignTree(d trust.Digest, old []byte, k *Key) ([]byte, error) {
	if k.ssh != nil {
		return nil, errors.New("sign: OpenSSH keys can't sign releases; use a key from `lockstep trust init` or `cosign generate-key-pair`")
	}
	statement, err := json.Marshal(verify.NewStatement(d))
	if err != nil {
		return nil, err
	}
	return trust.SealAs(verify.TypeInToto, statement, old, k)
}
