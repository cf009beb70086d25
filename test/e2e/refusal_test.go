// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

// TestARefusedCommitChangesNothing pushes commits that must be rejected, one
// after the other: each is reported with its cause, and 1.0.0 keeps running.
func TestARefusedCommitChangesNothing(t *testing.T) { //nolint:tparallel // the cases share one environment and run in order
	t.Parallel()
	s := newStable(t, 0)
	stranger := s.w.Path("stranger")
	_, err := env.NewSSHKey(stranger, "stranger")
	must(t, err)
	unknown := strings.Replace(declare(platform, first, s.good), "spec:\n", "spec:\n  desird: {}\n", 1)
	for _, tc := range []struct {
		rule, key string
		files     map[string]string
		reason    string
		message   []string
	}{
		{
			"TwoDocumentsForOneObject", s.w.Key("admin"),
			map[string]string{declarePath + "again.yaml": declare(platform, first, s.good)},
			"InvalidDesiredState",
			[]string{"again.yaml", "platform.yaml", "ClusterRelease/platform"},
		},
		{
			"AnUnknownField", s.w.Key("admin"),
			map[string]string{declarePath + "again.yaml": "", platformFile: unknown},
			"InvalidDesiredState",
			[]string{"platform.yaml:5", "desird", "desired"},
		},
		{
			"AnEmptyPath", s.w.Key("admin"),
			map[string]string{platformFile: "", declarePath + "README.md": "nothing\n"},
			"EmptyDesiredState",
			[]string{declarePath[:len(declarePath)-1]},
		},
		{
			"AMissingPath", s.w.Key("admin"),
			map[string]string{declarePath + "README.md": "", "clusters/prud/platform.yaml": declare(platform, first, s.good)},
			"PathNotFound",
			[]string{"clusters/prod", "clusters/prud"},
		},
		{
			"AnUnsignedCommit", "",
			map[string]string{"clusters/prud/platform.yaml": "", platformFile: declare(platform, first, s.good)},
			"Unsigned",
			[]string{"git commit -S"},
		},
		{
			"ACommitByAStranger", stranger,
			map[string]string{"note": "by a stranger\n"},
			"WrongAuthority",
			[]string{"admin"},
		},
		{
			"ATrustPolicyThatNobodySigned", s.w.Key("admin"),
			map[string]string{declarePath + "trust.yaml": "apiVersion: lockstep.dev/v1alpha1\nkind: TrustPolicy\nmetadata: {name: root}\nspec: {envelope: '{}'}\n"},
			"PolicyChangeRefused",
			[]string{"TrustPolicy/root"},
		},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			hash := pushAs(t, s.w, tc.key, tc.rule, tc.files)
			contains(t, s.rejected(t, hash, tc.reason), tc.message...)
			s.keepsRunning(t)
		})
	}
	t.Run("ARewoundBranch", func(t *testing.T) {
		was := push(t, s.w, "good again", map[string]string{declarePath + "trust.yaml": ""})
		s.accepted(t, was)
		_, err := s.w.Git.Run(t.Context(), "reset", "-q", "--hard", "HEAD~1")
		must(t, err)
		hash, err := s.w.Git.Commit(t.Context(), s.w.Key("admin"), "another history", map[string]string{declarePath + "trust.yaml": ""})
		must(t, err)
		must(t, s.w.Git.Push(t.Context(), "main", "--force"))
		contains(t, s.rejected(t, hash, "Rewound"), was, hash)
		s.keepsRunning(t)
		_, err = s.w.Git.Run(t.Context(), "reset", "-q", "--hard", was)
		must(t, err)
		must(t, s.w.Git.Push(t.Context(), "main", "--force"))
		s.accepted(t, was)
	})
	waitCondition(t, s.w, sourceObject(), v1alpha1.ConditionSourceVerified, "True", "Verified")
}

// TestARefusedReleaseChangesNothing declares releases that must be rejected,
// one after the other: each is reported with its cause, and 1.0.0 keeps
// running.
func TestARefusedReleaseChangesNothing(t *testing.T) { //nolint:tparallel // the cases share one environment and run in order
	t.Parallel()
	s := newStable(t, 0)
	w := s.w
	wrongKey, err := w.NewSigningKey("wrong.key")
	must(t, err)
	for _, tc := range []struct {
		rule, version string
		make          func(t *testing.T, version string) string
		reason        string
		message       []string
	}{
		{"Unsigned", "1.1.0", func(t *testing.T, version string) string {
			t.Helper()
			return unsigned(t, w, platformRelease(version, nil))
		}, "Unsigned", []string{"lockstep release sign", "retried automatically"}},
		{"SignedByTheWrongKey", "1.1.1", func(t *testing.T, version string) string {
			t.Helper()
			ref := unsigned(t, w, platformRelease(version, nil))
			_, err := w.Lockstep(t.Context(), "release", "sign", ref, "--key", wrongKey)
			must(t, err)
			return ref
		}, "WrongAuthority", nil},
		{"TheSignatureOfAnotherDigestUnderItsTag", "1.1.2", func(t *testing.T, version string) string {
			t.Helper()
			ref := unsigned(t, w, platformRelease(version, nil))
			must(t, w.CopyLegacySignature(t.Context(), s.good, ref))
			return ref
		}, "WrongDigest", nil},
		{"TheSignatureOfAnotherDigestAsABundle", "1.1.3", func(t *testing.T, version string) string {
			t.Helper()
			ref := unsigned(t, w, platformRelease(version, nil))
			must(t, w.CopyBundle(t.Context(), s.good, ref))
			return ref
		}, "WrongDigest", nil},
		{"ALayerThatIsTamperedWith", "1.1.4", func(t *testing.T, version string) string {
			t.Helper()
			ref := release(t, w, platformRelease(version, nil))
			layers, err := w.Layers(t.Context(), ref)
			must(t, err)
			w.Reg.Tamper(layers[0])
			return ref
		}, "FetchFailed", []string{"digest"}},
		{"AnArchiveThatClimbsOut", "1.1.5", func(t *testing.T, version string) string {
			t.Helper()
			return crafted(t, w, version, map[string]string{"release-manifests/../../evil.yaml": "kind: List\n"})
		}, "ForbiddenContent", []string{"evil.yaml"}},
		{"AnArchiveOfTooManyBytes", "1.1.6", func(t *testing.T, version string) string {
			t.Helper()
			return crafted(t, w, version, map[string]string{"release-manifests/0000_10_base_big.yaml": "# " + strings.Repeat("x", 65<<20) + "\n"})
		}, "LimitExceeded", nil},
		{"AnotherProduct", "1.1.7", func(t *testing.T, version string) string {
			t.Helper()
			return release(t, w, configRelease("intruder", version, nil))
		}, "NameMismatch", []string{"intruder", platform}},
		{"AnotherVersionThanIsDeclared", "1.1.8", func(t *testing.T, _ string) string {
			t.Helper()
			return release(t, w, platformRelease("1.1.9", nil))
		}, "NameMismatch", []string{"1.1.9", "1.1.8"}},
		{"AnImageThatIsMissing", "1.1.10", func(*testing.T, string) string {
			return w.Reg.Host + "/platform/release@sha256:" + strings.Repeat("0", 64)
		}, "FetchFailed", nil},
		{"AManifestThatTheServerRefuses", "1.1.11", func(t *testing.T, version string) string {
			t.Helper()
			return release(t, w, platformRelease(version, map[string]string{
				"service.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: platform}\nspec: {ports: [{port: 99999}]}\n",
			}))
		}, "ResourceInvalid", []string{"platform/web", "99999"}},
		{"TwoManifestsForOneObject", "1.1.12", func(t *testing.T, version string) string {
			t.Helper()
			ref, err := w.PushUnchecked(t.Context(), platformRelease(version, map[string]string{
				"twice.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: platform}\n",
			}))
			must(t, err)
			must(t, w.Sign(t.Context(), "release", ref))
			return ref
		}, "PayloadInvalid", []string{"platform/settings", "twice"}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			defer w.Reg.Tamper("")
			ref := tc.make(t, tc.version)
			s.declares(t, tc.version, ref)
			contains(t, s.refused(t, platform, tc.version, tc.reason), tc.message...)
			s.keepsRunning(t)
		})
	}
	s.back(t)
	t.Run("AnObjectOfAnotherRelease", func(t *testing.T) { testOwnedByOther(t, s) })
	t.Run("AnObjectThatCannotExist", func(t *testing.T) { testImpossibleScope(t, s) })
	t.Run("UntilItIsSigned", func(t *testing.T) { testSignedLater(t, s) })
	t.Run("UntilItIsWaived", func(t *testing.T) { testWaived(t, s) })
}

// unsigned builds an unsigned release.
func unsigned(t *testing.T, w *env.Env, r env.Release) string {
	t.Helper()
	ref, err := w.BuildRelease(t.Context(), r)
	must(t, err)
	return ref
}

// crafted is a signed artifact whose archive has exactly these files.
func crafted(t *testing.T, w *env.Env, version string, files map[string]string) string {
	t.Helper()
	return craftedOf(t, w, platform, version, files)
}

func craftedOf(t *testing.T, w *env.Env, product, version string, files map[string]string) string {
	t.Helper()
	all := map[string]string{"release-manifests/release-metadata": `{"kind":"cincinnati-metadata-v0","name":"` + product + `","version":"` + version + `"}`}
	maps.Copy(all, files)
	archive, err := env.Archive(all)
	must(t, err)
	ref, err := w.PushArchive(t.Context(), product, version, archive)
	must(t, err)
	must(t, w.Sign(t.Context(), "release", ref))
	return ref
}

// testOwnedByOther declares a second release with an object of the first: it
// is rejected before its first write, at its first and at later versions, and
// the error names object and owner.
func testOwnedByOther(t *testing.T, s *stable) {
	t.Helper()
	site := declarePath + "site.yaml"
	thief := func(version string) string {
		return release(t, s.w, configRelease("site", version, map[string]string{
			"stolen.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: platform}\ndata: {version: stolen}\n",
		}))
	}
	push(t, s.w, "site claims an object of the platform", map[string]string{site: declare("site", "1.0.0", thief("1.0.0"))})
	contains(t, s.refused(t, "site", "1.0.0", "OwnedByOther"), "platform/settings", "clusterrelease/platform")
	waitConfig(t, s.w, platform, first)
	s.keepsRunning(t)
	push(t, s.w, "site claims its own", map[string]string{site: declare("site", "1.0.1", release(t, s.w, configRelease("site", "1.0.1", nil)))})
	waitApplied(t, s.w, "site", "1.0.1")
	push(t, s.w, "site claims it again", map[string]string{site: declare("site", "1.0.2", thief("1.0.2"))})
	contains(t, s.refused(t, "site", "1.0.2", "OwnedByOther"), "platform/settings", "clusterrelease/platform")
	waitConfig(t, s.w, "site", "1.0.1")
	waitConfig(t, s.w, platform, first)
}

// testImpossibleScope declares releases that were packed by other tools, with a
// namespaced object without a namespace: they are rejected before their first
// write, also as the first install, and the next version installs.
func testImpossibleScope(t *testing.T, s *stable) {
	t.Helper()
	const file = declarePath + "lab.yaml"
	impossible := func(version string) string {
		return craftedOf(t, s.w, "lab", version, map[string]string{
			"release-manifests/0000_10_base_00.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: lab}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {version: lost}\n",
		})
	}
	push(t, s.w, "lab with an object that can't exist", map[string]string{file: declare("lab", "1.0.0", impossible("1.0.0"))})
	contains(t, s.refused(t, "lab", "1.0.0", "ResourceInvalid"), "ConfigMap settings", "has no namespace", "0000_10_base_00.yaml:5")
	var namespace corev1.Namespace
	if err := s.w.Client.Get(t.Context(), client.ObjectKey{Name: "lab"}, &namespace); !apierrors.IsNotFound(err) {
		t.Errorf("the rejected release wrote its namespace: %v", err)
	}
	push(t, s.w, "lab is mended", map[string]string{file: declare("lab", "1.0.1", release(t, s.w, configRelease("lab", "1.0.1", nil)))})
	waitApplied(t, s.w, "lab", "1.0.1")
	push(t, s.w, "lab is broken again", map[string]string{file: declare("lab", "1.0.2", impossible("1.0.2"))})
	contains(t, s.refused(t, "lab", "1.0.2", "ResourceInvalid"), "ConfigMap settings", "has no namespace")
	waitConfig(t, s.w, "lab", "1.0.1")
	push(t, s.w, "lab is mended again", map[string]string{file: declare("lab", "1.0.3", release(t, s.w, configRelease("lab", "1.0.3", nil)))})
	waitApplied(t, s.w, "lab", "1.0.3")
}

// testSignedLater declares an unsigned release: it is accepted automatically
// once it is signed.
func testSignedLater(t *testing.T, s *stable) {
	t.Helper()
	ref := unsigned(t, s.w, platformRelease("1.1.20", nil))
	push(t, s.w, "platform 1.1.20 before it is signed", map[string]string{platformFile: declare(platform, "1.1.20", ref) + "  interval: 10s\n"})
	s.refused(t, platform, "1.1.20", "Unsigned")
	s.keepsRunning(t)
	must(t, s.w.Sign(t.Context(), "release", ref))
	waitApplied(t, s.w, platform, "1.1.20")
	s.repairs(t, "1.1.20")
}

// testWaived declares a release that skips a minor version, with waivers that
// don't count, and with one that does.
func testWaived(t *testing.T, s *stable) {
	t.Helper()
	const version = "1.3.0"
	source := platformRelease(version, nil)
	source.MaxMinorHop = 1
	ref := release(t, s.w, source)
	waive := func(release, key, cluster, check string) (string, error) {
		return s.w.Lockstep(t.Context(), "release", "waive", release, "--key", key, "--cluster", cluster,
			"--check", check, "--reason", "tested on staging", "--expires", "1h")
	}
	waived := func(release, key, cluster string) string {
		t.Helper()
		field, err := waive(release, key, cluster, "GiantHop")
		must(t, err)
		return field
	}
	admin := s.w.Key("admin")
	if out, err := waive(ref, admin, env.Cluster, "VersionFloor"); err == nil {
		t.Errorf("a waiver of a floor was signed: %s", out)
	}
	for _, tc := range []struct {
		waiver  string
		message []string
	}{
		{"", []string{"minor versions are skipped", "lockstep release waive " + ref + " --cluster " + env.Cluster + " --check GiantHop"}},
		{waived(ref, admin, "staging"), []string{"NameMismatch", "staging"}},
		{waived(s.good, admin, env.Cluster), []string{"WrongDigest"}},
		{waived(ref, s.w.Key("release"), env.Cluster), []string{"WrongAuthority", "release"}},
	} {
		push(t, s.w, "platform "+version, map[string]string{platformFile: declare(platform, version, ref) + "  interval: 10s\n" + tc.waiver})
		must(t, env.Wait(t.Context(), time.Minute, func(context.Context) error {
			message := s.refused(t, platform, version, "GiantHop")
			for _, part := range tc.message {
				if !strings.Contains(message, part) {
					return fmt.Errorf("message %q, want %q in it", message, part)
				}
			}
			return nil
		}))
	}
	field := waived(ref, admin, env.Cluster)
	push(t, s.w, "platform "+version+" with a waiver", map[string]string{platformFile: declare(platform, version, ref) + field})
	waitApplied(t, s.w, platform, version)
	obj, err := getRelease(t.Context(), s.w, platform)
	must(t, err)
	contains(t, obj.Status.History[0].AcceptedRisks, "GiantHop", "tested on staging", "admin")
	// Neither a restart nor a commit after the waiver's removal stops the release.
	s.restart(t)
	push(t, s.w, "platform "+version+" without the waiver", map[string]string{platformFile: declare(platform, version, ref)})
	s.repairs(t, version)
}
