// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package verify_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// registries are registries with and without the referrers API.
var registries = map[string][]ggcr.Option{
	"with the referrers API": {ggcr.WithReferrersSupport(true)},
	"with the fallback tag":  nil,
}

// inBoth runs a test for both formats with both kinds of registries.
func inBoth(t *testing.T, f func(e *env, format build.Format)) {
	t.Helper()
	for name, options := range registries {
		for _, format := range []build.Format{build.Legacy, build.Bundle} {
			t.Run(string(format)+" "+name, func(t *testing.T) { f(newEnv(t, options...), format) })
		}
	}
}

func TestAValidSignatureIsAccepted(t *testing.T) {
	inBoth(t, func(e *env, format build.Format) {
		t := e.t
		p := e.release("1.4.2")
		e.sign(p, "a", format)
		s, _, err := e.check(verify.Request{Name: "platform", Image: p.Reference(), Product: "platform", Version: "1.4.2"})
		if err != nil {
			t.Fatal(err)
		}
		if s.Digest() != p.Digest || s.Product() != "platform" || s.Version() != "1.4.2" || s.Reference() != p.Reference() {
			t.Errorf("Signed is %+v", s)
		}
		ev := s.Evidence()
		if len(ev.Signers) != 1 || ev.Signers[0].Name != "a" || ev.Signers[0].Fingerprint != e.keys["a"].Fingerprint() || !ev.Signers[0].Seen.Equal(now) {
			t.Errorf("evidence is %s", ev.Summary())
		}
		if n := len(ev.Summary()); n > trust.MaxSummary {
			t.Errorf("summary has %d bytes", n)
		}
	})
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(e *env, p build.Published, f build.Format) verify.Request
		reason trust.Reason
	}{
		"without a signature": {func(_ *env, p build.Published, _ build.Format) verify.Request {
			return verify.Request{Image: p.Reference()}
		}, trust.Unsigned},
		"with a signature of an unknown key": {func(e *env, p build.Published, f build.Format) verify.Request {
			e.sign(p, "unknown", f)
			return verify.Request{Image: p.Reference()}
		}, trust.WrongAuthority},
		"with a signature of a key with another role": {func(e *env, p build.Published, f build.Format) verify.Request {
			e.sign(p, "os", f)
			return verify.Request{Image: p.Reference()}
		}, trust.WrongAuthority},
		"requested as another version": {func(e *env, p build.Published, f build.Format) verify.Request {
			e.sign(p, "a", f)
			return verify.Request{Image: p.Reference(), Version: "9.9.9"}
		}, trust.NameMismatch},
		"requested as another product": {func(e *env, p build.Published, f build.Format) verify.Request {
			e.sign(p, "a", f)
			return verify.Request{Image: p.Reference(), Product: "other"}
		}, trust.NameMismatch},
		"below the high-water mark": {func(e *env, p build.Published, f build.Format) verify.Request {
			e.sign(p, "a", f)
			return verify.Request{Image: p.Reference(), Mark: trust.Mark{Version: "1.5.0", Policy: 1}}
		}, trust.Rollback},
		"by tag": {func(e *env, p build.Published, f build.Format) verify.Request {
			e.sign(p, "a", f)
			return verify.Request{Image: p.Repository + ":latest"}
		}, trust.UnpinnedImage},
		"by tag and digest": {func(e *env, p build.Published, f build.Format) verify.Request {
			e.sign(p, "a", f)
			return verify.Request{Image: p.Repository + ":1@" + p.Digest.String()}
		}, trust.UnpinnedImage},
		"with a missing digest": {func(_ *env, p build.Published, _ build.Format) verify.Request {
			return verify.Request{Image: p.Repository + "@" + trust.DigestOf(nil).String()}
		}, trust.FetchFailed},
	} {
		t.Run(name, func(t *testing.T) {
			inBoth(t, func(e *env, format build.Format) {
				e.want(tc.reason, tc.do(e, e.release("1.4.2"), format))
			})
		})
	}
}

func TestAProductWithoutARuleIsRefused(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.osImage("1.0.0", "x")
	e.sign(p, "a")
	e.want(trust.NameMismatch, verify.Request{Image: p.Reference()})
}

func TestASignatureOfAnotherDigestIsRefused(t *testing.T) {
	for _, options := range registries {
		e := newEnv(t, options...)
		one, two := e.release("1.4.1"), e.release("1.4.2")
		e.sign(one, "a", build.Legacy)
		// The registry returns the signatures of the first for the second.
		e.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
			r.URL.Path = strings.Replace(r.URL.Path, verify.LegacyTag(two.Digest), verify.LegacyTag(one.Digest), 1)
			return false
		}
		e.want("", verify.Request{Image: one.Reference()})
		e.want(trust.WrongDigest, verify.Request{Image: two.Reference()})
	}
}

func TestABundleOfAnotherDigestIsRefused(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	one, two := e.release("1.4.1"), e.release("1.4.2")
	e.sign(one, "a", build.Bundle)
	e.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		r.URL.Path = strings.Replace(r.URL.Path, "referrers/"+two.Digest.String(), "referrers/"+one.Digest.String(), 1)
		return false
	}
	e.want(trust.WrongDigest, verify.Request{Image: two.Reference()})
}

func TestAnAttestationIsNotASignature(t *testing.T) {
	inBoth(t, func(e *env, _ build.Format) {
		p := e.release("1.4.2")
		if _, err := e.pub.Attest(e.t.Context(), p.Repository, p.Digest, e.keys["a"], "https://cosign.sigstore.dev/attestation/vuln/v1"); err != nil {
			e.t.Fatal(err)
		}
		e.want(trust.Unsigned, verify.Request{Image: p.Reference()})
	})
}

func TestAnAttestationListedAsASignatureIsNotASignature(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	d, err := e.pub.Attest(t.Context(), p.Repository, p.Digest, e.keys["a"], "https://slsa.dev/provenance/v1")
	if err != nil {
		t.Fatal(err)
	}
	e.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/referrers/") {
			_, _ = fmt.Fprintf(rw, `{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",
				"artifactType":"application/vnd.dev.sigstore.bundle.v0.3+json","digest":%q,"size":1}]}`, d)
			return true
		}
		return false
	}
	_, reason, err := e.check(verify.Request{Image: p.Reference()})
	if reason != trust.Unsigned || !strings.Contains(err.Error(), "isn't a signature") {
		t.Errorf("got %v", err)
	}
}

func TestThresholdCountsDistinctKeys(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	e.doc = document(t, e.keys, 2, "")
	p := e.release("1.4.2")
	e.sign(p, "a")
	e.sign(p, "a")
	e.sign(p, "unknown")
	_, reason, err := e.check(verify.Request{Image: p.Reference()})
	if reason != trust.ThresholdNotMet {
		t.Fatalf("one key twice and an unknown key: %v", err)
	}
	if text := err.Error(); !strings.Contains(text, "1 of 2 signatures: a") || !strings.Contains(text, "--key b.key") {
		t.Errorf("the refusal doesn't name the missing signers: %s", text)
	}
	e.sign(p, "c", build.Bundle)
	s, _, err := e.check(verify.Request{Image: p.Reference()})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Evidence().Rules; len(got) != 1 || !strings.Contains(got[0], "2 of 2") {
		t.Errorf("rules are %q", got)
	}
}

func TestAnInvalidSignatureDoesNotHideAValidOne(t *testing.T) {
	for name, options := range registries {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, options...)
			p := e.release("1.4.2")
			e.sign(p, "unknown")
			e.sign(p, "a", build.Bundle)
			e.sign(p, "unknown")
			e.want("", verify.Request{Image: p.Reference()})
		})
	}
}

func TestAFailingSignatureTagDoesNotHideABundle(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	e.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, ".sig") {
			rw.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	}
	e.want(trust.FetchFailed, verify.Request{Image: p.Reference()})
	e.sign(p, "a", build.Bundle)
	e.want("", verify.Request{Image: p.Reference()})
}

func TestRevokedKeysAndDigestsAreRefused(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	e.sign(p, "a")
	for name, extra := range map[string]string{
		"a key by name":        "revoked: {keys: [a]}\n",
		"a key by fingerprint": "revoked: {keys: [\"" + e.keys["a"].Fingerprint() + "\"]}\n",
		"a digest":             "revoked: {digests: [\"" + p.Digest.String() + "\"]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			e.doc = document(t, e.keys, 1, extra)
			e.want(trust.Revoked, verify.Request{Image: p.Reference()})
		})
	}
}

func TestFloorsAlsoApplyToPreviouslyAcceptedReleases(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	e.sign(p, "a")
	e.doc = document(t, e.keys, 1, "floors: {platform: 1.5.0}\n")
	e.want(trust.BelowFloor, verify.Request{Image: p.Reference()})
	e.want(trust.BelowFloor, verify.Request{Image: p.Reference(), PreviouslyAccepted: true})
}

func TestAnExpiredPolicyBlocksOnlyNewReleases(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	e.sign(p, "a")
	v, err := verify.New(verify.Config{
		Registry: e.client, Policy: func() *trust.Document { return e.doc }, Cluster: "prod",
		Now: func() time.Time { return now.AddDate(2, 0, 0) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Release(t.Context(), verify.Request{Image: p.Reference()}); trust.ReasonOf(err) != trust.Expired {
		t.Errorf("a new rollout: %v", err)
	}
	if _, err := v.Release(t.Context(), verify.Request{Image: p.Reference(), PreviouslyAccepted: true}); err != nil {
		t.Errorf("a running release: %v", err)
	}
}

func TestAKeysValidityAppliesToWhenMaterialWasFirstSeen(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	e.sign(p, "a", build.Bundle)
	s, _, err := e.check(verify.Request{Image: p.Reference()})
	if err != nil {
		t.Fatal(err)
	}
	later := now.AddDate(0, 6, 0)
	e.doc = windowed(t, e, now.AddDate(0, 1, 0))
	v, err := verify.New(verify.Config{
		Registry: e.client, Policy: func() *trust.Document { return e.doc }, Now: func() time.Time { return later },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Release(t.Context(), verify.Request{Image: p.Reference()}); trust.ReasonOf(err) != trust.Expired {
		t.Errorf("first seen after the window: %v", err)
	}
	if _, err := v.Release(t.Context(), verify.Request{Image: p.Reference(), Seen: s.Evidence().Seen()}); err != nil {
		t.Errorf("first seen within the window: %v", err)
	}
}

func TestWithoutAPolicyEverythingIsRefused(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	e.sign(p, "a")
	e.doc = nil
	e.want(trust.PolicyMissing, verify.Request{Image: p.Reference()})
	e.doc = &trust.Document{Name: "made by hand"}
	e.want(trust.PolicyMissing, verify.Request{Image: p.Reference()})
}

func TestAnAgentVerifiesWithoutNameAndSource(t *testing.T) {
	inBoth(t, func(e *env, format build.Format) {
		t := e.t
		p := e.osImage("2.1.0", "kernel")
		e.sign(p, "os", format)
		v, err := verify.New(verify.Config{
			Registry: e.client, Policy: func() *trust.Document { return e.doc }, Now: func() time.Time { return now },
		})
		if err != nil {
			t.Fatal(err)
		}
		s, err := v.OS(t.Context(), verify.Request{Image: p.Reference(), Product: "platform-os", Version: "2.1.0"})
		if err != nil || s.Kind() != trust.KindNodeOS {
			t.Fatal(s, err)
		}
		if _, err := v.Release(t.Context(), verify.Request{Image: p.Reference()}); trust.ReasonOf(err) != trust.NameMismatch {
			t.Errorf("an OS image as a release: %v", err)
		}
	})
}

func TestT8ATamperedManifestIsRefused(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	one, two := e.release("1.4.1"), e.release("1.4.2")
	e.sign(two, "a")
	e.intercept = func(_ http.ResponseWriter, r *http.Request) bool {
		r.URL.Path = strings.Replace(r.URL.Path, "manifests/"+two.Digest.String(), "manifests/"+one.Digest.String(), 1)
		return false
	}
	e.want(trust.FetchFailed, verify.Request{Image: two.Reference()})
}

func TestT8ManyReferrersDoNotHideASignature(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	good := e.sign(p, "a", build.Bundle)
	for range 12 {
		e.sign(p, "unknown", build.Bundle)
	}
	v := e.verifier(verify.Limits{Referrers: 4})
	_, err := v.Release(t.Context(), verify.Request{Image: p.Reference()})
	if err != nil && trust.ReasonOf(err) != trust.LimitExceeded {
		t.Errorf("over the limit: %v", err)
	}
	if err != nil && !strings.Contains(err.Error(), "spec.desired.signatures") {
		t.Errorf("the refusal names no fix: %v", err)
	}
	if _, err := v.Release(t.Context(), verify.Request{Image: p.Reference(), Signatures: good}); err != nil {
		t.Errorf("with the signature named: %v", err)
	}
	if _, err := e.verifier(verify.Limits{}).Release(t.Context(), verify.Request{Image: p.Reference()}); err != nil {
		t.Errorf("within the limit: %v", err)
	}
}

func TestT8SignaturesInTheRequestAreTriedFirst(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	good := e.sign(p, "a")
	e.requests = nil
	e.want("", verify.Request{Image: p.Reference(), Signatures: good[:1]})
	for _, h := range e.requests {
		if strings.Contains(h, "referrers") || strings.HasSuffix(h, ".sig") {
			t.Errorf("requested more than the given signature: %s", h)
		}
	}
}

func TestT8FetchingIsBounded(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	e.sign(p, "a", build.Bundle)
	if _, err := e.verifier(verify.Limits{Material: 10}).Release(t.Context(), verify.Request{Image: p.Reference()}); trust.ReasonOf(err) != trust.LimitExceeded {
		t.Errorf("material over its limit: %v", err)
	}
	if _, err := e.verifier(verify.Limits{Total: 10}).Release(t.Context(), verify.Request{Image: p.Reference()}); trust.ReasonOf(err) != trust.LimitExceeded {
		t.Errorf("material over the total: %v", err)
	}
	e.intercept = func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/referrers/") {
			_, _ = rw.Write([]byte(`{"manifests":["` + strings.Repeat(base64.StdEncoding.EncodeToString(make([]byte, 1<<20)), 5) + `"]}`))
			return true
		}
		return false
	}
	e.want(trust.LimitExceeded, verify.Request{Image: p.Reference()})
}

func TestEachSignatureIsRequestedOnce(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	e.doc = document(t, e.keys, 3, "")
	p := e.release("1.4.2")
	for _, k := range []string{"a", "b", "c"} {
		e.sign(p, k, build.Legacy)
	}
	e.want("", verify.Request{Image: p.Reference()})
	e.requests = nil
	e.want("", verify.Request{Image: p.Reference()})
	if len(e.requests) > 5 { // image, tag, three signatures
		t.Errorf("%d requests for three signatures: %q", len(e.requests), e.requests)
	}
}

func TestT8EnvironmentVariablesAreIgnored(t *testing.T) {
	e := newEnv(t, ggcr.WithReferrersSupport(true))
	good, bad := e.release("1.4.2"), e.release("1.4.3")
	e.sign(good, "a")
	e.sign(bad, "unknown")
	for _, name := range []string{
		"COSIGN_REPOSITORY", "COSIGN_MAX_ATTACHMENT_SIZE", "COSIGN_EXPERIMENTAL", "SIGSTORE_ROOT_FILE", "SIGSTORE_REKOR_PUBLIC_KEY",
		"SIGSTORE_CT_LOG_PUBLIC_KEY_FILE", "SIGSTORE_TSA_CERTIFICATE_FILE", "TUF_ROOT", "TUF_MIRROR", "TUF_ROOT_JSON",
		"HTTP_PROXY", "HTTPS_PROXY", "DOCKER_CONFIG", "HOME",
	} {
		t.Setenv(name, "http://127.0.0.1:1/nowhere")
	}
	e.want("", verify.Request{Image: good.Reference()})
	e.want(trust.WrongAuthority, verify.Request{Image: bad.Reference()})
	for _, h := range e.requests {
		if !strings.Contains(h, " /v2/") {
			t.Errorf("requested %s", h)
		}
	}
}

// BenchmarkRelease measures a verification with both formats, as
// lockstep_verify_seconds does.
func BenchmarkRelease(b *testing.B) {
	e := newEnv(b, ggcr.WithReferrersSupport(true))
	p := e.release("1.4.2")
	e.sign(p, "a")
	v := e.verifier(verify.Limits{})
	for b.Loop() {
		if _, err := v.Release(b.Context(), verify.Request{Image: p.Reference()}); err != nil {
			b.Fatal(err)
		}
	}
}
