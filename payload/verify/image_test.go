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

// registries are the two kinds of registries that there are.
var registries = map[string][]ggcr.Option{
	"with the referrers API": {ggcr.WithReferrersSupport(true)},
	"with the fallback tag":  nil,
}

// inBoth runs a test for both formats in both kinds of registries.
func inBoth(t *testing.T, f func(w *world, format build.Format)) {
	t.Helper()
	for name, options := range registries {
		for _, format := range []build.Format{build.Legacy, build.Bundle} {
			t.Run(string(format)+" "+name, func(t *testing.T) { f(newWorld(t, options...), format) })
		}
	}
}

func TestAGoodSignatureMakesSigned(t *testing.T) {
	inBoth(t, func(w *world, format build.Format) {
		t := w.t
		p := w.release("1.4.2")
		w.sign(p, "a", format)
		s, _, err := w.check(verify.Request{Name: "platform", Image: p.Reference(), Product: "platform", Version: "1.4.2"})
		if err != nil {
			t.Fatal(err)
		}
		if s.Digest() != p.Digest || s.Product() != "platform" || s.Version() != "1.4.2" || s.Reference() != p.Reference() {
			t.Errorf("Signed is %+v", s)
		}
		ev := s.Evidence()
		if len(ev.Signers) != 1 || ev.Signers[0].Name != "a" || ev.Signers[0].Fingerprint != w.keys["a"].Fingerprint() || !ev.Signers[0].Seen.Equal(now) {
			t.Errorf("evidence is %s", ev.Summary())
		}
		if n := len(ev.Summary()); n > trust.MaxSummary {
			t.Errorf("summary has %d bytes", n)
		}
	})
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(w *world, p build.Published, f build.Format) verify.Request
		reason trust.Reason
	}{
		"without a signature": {func(_ *world, p build.Published, _ build.Format) verify.Request {
			return verify.Request{Image: p.Reference()}
		}, trust.Unsigned},
		"with a stranger's signature": {func(w *world, p build.Published, f build.Format) verify.Request {
			w.sign(p, "stranger", f)
			return verify.Request{Image: p.Reference()}
		}, trust.WrongAuthority},
		"with a signature of a key that has another role": {func(w *world, p build.Published, f build.Format) verify.Request {
			w.sign(p, "os", f)
			return verify.Request{Image: p.Reference()}
		}, trust.WrongAuthority},
		"asked for as another version": {func(w *world, p build.Published, f build.Format) verify.Request {
			w.sign(p, "a", f)
			return verify.Request{Image: p.Reference(), Version: "9.9.9"}
		}, trust.NameMismatch},
		"asked for as another product": {func(w *world, p build.Published, f build.Format) verify.Request {
			w.sign(p, "a", f)
			return verify.Request{Image: p.Reference(), Product: "other"}
		}, trust.NameMismatch},
		"below the high-water mark": {func(w *world, p build.Published, f build.Format) verify.Request {
			w.sign(p, "a", f)
			return verify.Request{Image: p.Reference(), Mark: trust.Mark{Version: "1.5.0", Policy: 1}}
		}, trust.Rollback},
		"by tag": {func(w *world, p build.Published, f build.Format) verify.Request {
			w.sign(p, "a", f)
			return verify.Request{Image: p.Repository + ":latest"}
		}, trust.UnpinnedImage},
		"by tag and digest": {func(w *world, p build.Published, f build.Format) verify.Request {
			w.sign(p, "a", f)
			return verify.Request{Image: p.Repository + ":1@" + p.Digest.String()}
		}, trust.UnpinnedImage},
		"with a digest that isn't there": {func(_ *world, p build.Published, _ build.Format) verify.Request {
			return verify.Request{Image: p.Repository + "@" + trust.DigestOf(nil).String()}
		}, trust.FetchFailed},
	} {
		t.Run(name, func(t *testing.T) {
			inBoth(t, func(w *world, format build.Format) {
				w.want(tc.reason, tc.do(w, w.release("1.4.2"), format))
			})
		})
	}
}

func TestAnImageOfAProductWithoutARuleIsRefused(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.osImage("1.0.0", "x")
	w.sign(p, "a")
	w.want(trust.NameMismatch, verify.Request{Image: p.Reference()})
}

func TestASignatureOfAnotherDigestIsRefused(t *testing.T) {
	for _, options := range registries {
		w := newWorld(t, options...)
		one, two := w.release("1.4.1"), w.release("1.4.2")
		w.sign(one, "a", build.Legacy)
		// The registry answers with the signatures of the first for the second.
		w.before = func(_ http.ResponseWriter, r *http.Request) bool {
			r.URL.Path = strings.Replace(r.URL.Path, verify.LegacyTag(two.Digest), verify.LegacyTag(one.Digest), 1)
			return false
		}
		w.want("", verify.Request{Image: one.Reference()})
		w.want(trust.WrongDigest, verify.Request{Image: two.Reference()})
	}
}

func TestABundleOfAnotherDigestIsRefused(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	one, two := w.release("1.4.1"), w.release("1.4.2")
	w.sign(one, "a", build.Bundle)
	w.before = func(_ http.ResponseWriter, r *http.Request) bool {
		r.URL.Path = strings.Replace(r.URL.Path, "referrers/"+two.Digest.String(), "referrers/"+one.Digest.String(), 1)
		return false
	}
	w.want(trust.WrongDigest, verify.Request{Image: two.Reference()})
}

func TestAnAttestationIsNoSignature(t *testing.T) {
	inBoth(t, func(w *world, _ build.Format) {
		p := w.release("1.4.2")
		if _, err := w.pub.Attest(w.t.Context(), p.Repository, p.Digest, w.keys["a"], "https://cosign.sigstore.dev/attestation/vuln/v1"); err != nil {
			w.t.Fatal(err)
		}
		w.want(trust.Unsigned, verify.Request{Image: p.Reference()})
	})
}

func TestAnAttestationThatIsListedAsASignatureIsNone(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	d, err := w.pub.Attest(t.Context(), p.Repository, p.Digest, w.keys["a"], "https://slsa.dev/provenance/v1")
	if err != nil {
		t.Fatal(err)
	}
	w.before = func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/referrers/") {
			_, _ = fmt.Fprintf(rw, `{"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",
				"artifactType":"application/vnd.dev.sigstore.bundle.v0.3+json","digest":%q,"size":1}]}`, d)
			return true
		}
		return false
	}
	_, reason, err := w.check(verify.Request{Image: p.Reference()})
	if reason != trust.Unsigned || !strings.Contains(err.Error(), "isn't a signature") {
		t.Errorf("got %v", err)
	}
}

func TestThresholdCountsDistinctKeys(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	w.doc = document(t, w.keys, 2, "")
	p := w.release("1.4.2")
	w.sign(p, "a")
	w.sign(p, "a")
	w.sign(p, "stranger")
	_, reason, err := w.check(verify.Request{Image: p.Reference()})
	if reason != trust.ThresholdNotMet {
		t.Fatalf("one key twice and a stranger: %v", err)
	}
	if text := err.Error(); !strings.Contains(text, "1 of 2 signatures: a") || !strings.Contains(text, "--key b.key") {
		t.Errorf("the refusal doesn't say who is missing: %s", text)
	}
	w.sign(p, "c", build.Bundle)
	s, _, err := w.check(verify.Request{Image: p.Reference()})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Evidence().Rules; len(got) != 1 || !strings.Contains(got[0], "2 of 2") {
		t.Errorf("rules are %q", got)
	}
}

func TestOneBadSignatureNeverMasksAGoodOne(t *testing.T) {
	for name, options := range registries {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, options...)
			p := w.release("1.4.2")
			w.sign(p, "stranger")
			w.sign(p, "a", build.Bundle)
			w.sign(p, "stranger")
			w.want("", verify.Request{Image: p.Reference()})
		})
	}
}

func TestAFailingSignatureTagDoesntMaskABundle(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	w.before = func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, ".sig") {
			rw.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	}
	w.want(trust.FetchFailed, verify.Request{Image: p.Reference()})
	w.sign(p, "a", build.Bundle)
	w.want("", verify.Request{Image: p.Reference()})
}

func TestRevokedKeysAndDigestsAreRefused(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	w.sign(p, "a")
	for name, extra := range map[string]string{
		"a key by name":        "revoked: {keys: [a]}\n",
		"a key by fingerprint": "revoked: {keys: [\"" + w.keys["a"].Fingerprint() + "\"]}\n",
		"a digest":             "revoked: {digests: [\"" + p.Digest.String() + "\"]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			w.doc = document(t, w.keys, 1, extra)
			w.want(trust.Revoked, verify.Request{Image: p.Reference()})
		})
	}
}

func TestFloorsHoldForEverybody(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	w.sign(p, "a")
	w.doc = document(t, w.keys, 1, "floors: {platform: 1.5.0}\n")
	w.want(trust.BelowFloor, verify.Request{Image: p.Reference()})
	w.want(trust.BelowFloor, verify.Request{Image: p.Reference(), PreviouslyAccepted: true})
}

func TestAnExpiredPolicyStopsOnlyWhatIsNew(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	w.sign(p, "a")
	v, err := verify.New(verify.Config{
		Registry: w.client, Policy: func() *trust.Document { return w.doc }, Cluster: "prod",
		Now: func() time.Time { return now.AddDate(2, 0, 0) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Release(t.Context(), verify.Request{Image: p.Reference()}); trust.ReasonOf(err) != trust.Expired {
		t.Errorf("a new rollout: %v", err)
	}
	if _, err := v.Release(t.Context(), verify.Request{Image: p.Reference(), PreviouslyAccepted: true}); err != nil {
		t.Errorf("what runs: %v", err)
	}
}

func TestTheKeysWindowBindsWhenMaterialWasFirstSeen(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	w.sign(p, "a", build.Bundle)
	s, _, err := w.check(verify.Request{Image: p.Reference()})
	if err != nil {
		t.Fatal(err)
	}
	later := now.AddDate(0, 6, 0)
	w.doc = windowed(t, w, now.AddDate(0, 1, 0))
	v, err := verify.New(verify.Config{
		Registry: w.client, Policy: func() *trust.Document { return w.doc }, Now: func() time.Time { return later },
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

func TestWithoutAPolicyNothingIsSigned(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	w.sign(p, "a")
	w.doc = nil
	w.want(trust.PolicyMissing, verify.Request{Image: p.Reference()})
	w.doc = &trust.Document{Name: "made by hand"}
	w.want(trust.PolicyMissing, verify.Request{Image: p.Reference()})
}

func TestAnAgentVerifiesWithoutKnowingNames(t *testing.T) {
	inBoth(t, func(w *world, format build.Format) {
		t := w.t
		p := w.osImage("2.1.0", "kernel")
		w.sign(p, "os", format)
		v, err := verify.New(verify.Config{
			Registry: w.client, Policy: func() *trust.Document { return w.doc }, Now: func() time.Time { return now },
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

func TestWallEightATamperedManifestIsRefused(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	one, two := w.release("1.4.1"), w.release("1.4.2")
	w.sign(two, "a")
	w.before = func(_ http.ResponseWriter, r *http.Request) bool {
		r.URL.Path = strings.Replace(r.URL.Path, "manifests/"+two.Digest.String(), "manifests/"+one.Digest.String(), 1)
		return false
	}
	w.want(trust.FetchFailed, verify.Request{Image: two.Reference()})
}

func TestWallEightFloodingHidesNoSignature(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	good := w.sign(p, "a", build.Bundle)
	for range 12 {
		w.sign(p, "stranger", build.Bundle)
	}
	v := w.verifier(verify.Limits{Referrers: 4})
	_, err := v.Release(t.Context(), verify.Request{Image: p.Reference()})
	if err != nil && trust.ReasonOf(err) != trust.LimitExceeded {
		t.Errorf("over the limit: %v", err)
	}
	if err != nil && !strings.Contains(err.Error(), "spec.desired.signatures") {
		t.Errorf("the refusal names no way out: %v", err)
	}
	if _, err := v.Release(t.Context(), verify.Request{Image: p.Reference(), Signatures: good}); err != nil {
		t.Errorf("with the signature named: %v", err)
	}
	if _, err := w.verifier(verify.Limits{}).Release(t.Context(), verify.Request{Image: p.Reference()}); err != nil {
		t.Errorf("within the limit: %v", err)
	}
}

func TestWallEightANamedSignatureIsTriedFirst(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	good := w.sign(p, "a")
	w.hits = nil
	w.want("", verify.Request{Image: p.Reference(), Signatures: good[:1]})
	for _, h := range w.hits {
		if strings.Contains(h, "referrers") || strings.HasSuffix(h, ".sig") {
			t.Errorf("asked for more than was named: %s", h)
		}
	}
}

func TestWallEightFetchingIsBounded(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	w.sign(p, "a", build.Bundle)
	if _, err := w.verifier(verify.Limits{Material: 10}).Release(t.Context(), verify.Request{Image: p.Reference()}); trust.ReasonOf(err) != trust.LimitExceeded {
		t.Errorf("material over its limit: %v", err)
	}
	if _, err := w.verifier(verify.Limits{Total: 10}).Release(t.Context(), verify.Request{Image: p.Reference()}); trust.ReasonOf(err) != trust.LimitExceeded {
		t.Errorf("material over the sum: %v", err)
	}
	w.before = func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/referrers/") {
			_, _ = rw.Write([]byte(`{"manifests":["` + strings.Repeat(base64.StdEncoding.EncodeToString(make([]byte, 1<<20)), 5) + `"]}`))
			return true
		}
		return false
	}
	w.want(trust.LimitExceeded, verify.Request{Image: p.Reference()})
}

func TestOneCheckAsksOnce(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	w.doc = document(t, w.keys, 3, "")
	p := w.release("1.4.2")
	for _, k := range []string{"a", "b", "c"} {
		w.sign(p, k, build.Legacy)
	}
	w.want("", verify.Request{Image: p.Reference()})
	w.hits = nil
	w.want("", verify.Request{Image: p.Reference()})
	if len(w.hits) > 5 { // image, tag, three signatures
		t.Errorf("%d requests for three signatures: %q", len(w.hits), w.hits)
	}
}

func TestWallEightNoVariableSteersAVerification(t *testing.T) {
	w := newWorld(t, ggcr.WithReferrersSupport(true))
	good, bad := w.release("1.4.2"), w.release("1.4.3")
	w.sign(good, "a")
	w.sign(bad, "stranger")
	for _, name := range []string{
		"COSIGN_REPOSITORY", "COSIGN_MAX_ATTACHMENT_SIZE", "COSIGN_EXPERIMENTAL", "SIGSTORE_ROOT_FILE", "SIGSTORE_REKOR_PUBLIC_KEY",
		"SIGSTORE_CT_LOG_PUBLIC_KEY_FILE", "SIGSTORE_TSA_CERTIFICATE_FILE", "TUF_ROOT", "TUF_MIRROR", "TUF_ROOT_JSON",
		"HTTP_PROXY", "HTTPS_PROXY", "DOCKER_CONFIG", "HOME",
	} {
		t.Setenv(name, "http://127.0.0.1:1/nowhere")
	}
	w.want("", verify.Request{Image: good.Reference()})
	w.want(trust.WrongAuthority, verify.Request{Image: bad.Reference()})
	for _, h := range w.hits {
		if !strings.Contains(h, " /v2/") {
			t.Errorf("asked for %s", h)
		}
	}
}

// BenchmarkRelease is one check with both formats, for lockstep_verify_seconds.
func BenchmarkRelease(b *testing.B) {
	w := newWorld(b, ggcr.WithReferrersSupport(true))
	p := w.release("1.4.2")
	w.sign(p, "a")
	v := w.verifier(verify.Limits{})
	for b.Loop() {
		if _, err := v.Release(b.Context(), verify.Request{Image: p.Reference()}); err != nil {
			b.Fatal(err)
		}
	}
}
