// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

// TestTrustBoundaries runs attacks on the whole program in sequence, each
// named after the trust boundary that it tests.
func TestTrustBoundaries(t *testing.T) { //nolint:tparallel // the cases share one environment and run in order
	t.Parallel()
	s := newStable(t, 0)
	t.Run("T1APayloadChangesNoTrust", func(t *testing.T) { testT1(t, s) })
	t.Run("T2ASourceCannotLoosenItself", func(t *testing.T) { testT2(t, s) })
	s.back(t)
	t.Run("T3OnlyDeclaredStateIsActedUpon", func(t *testing.T) { testT3(t, s) })
	t.Run("T4ASecretServesOnlyItsUse", func(t *testing.T) { testT4(t, s) })
	t.Run("T10UntrustedStringsStayText", func(t *testing.T) { testT10(t, s) })
	t.Run("T11InsecureOptionsAreShown", func(t *testing.T) { testT11(t, s) })
	t.Run("PeersAgree", func(t *testing.T) { testPeers(t, s) })
	t.Run("T7ALabelNeverDeletes", func(t *testing.T) { testT7(t, s) })
}

func testT1(t *testing.T, s *stable) {
	for i, tc := range []struct{ what, manifest string }{
		{"TrustPolicy/root", "apiVersion: lockstep.dev/v1alpha1\nkind: TrustPolicy\nmetadata: {name: root, namespace: lockstep-system}\nspec: {envelope: '{}'}\n"},
		{"GitSource", "apiVersion: lockstep.dev/v1alpha1\nkind: GitSource\nmetadata: {name: other, namespace: lockstep-system}\nspec: {cluster: prod, url: 'https://evil.example.com/x', ref: {branch: main}}\n"},
		{"fleet-git", "apiVersion: v1\nkind: Secret\nmetadata: {name: fleet-git, namespace: lockstep-system}\n"},
		{"grant", "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: grant}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}\nsubjects: [{kind: ServiceAccount, name: lockstep-reconciler, namespace: lockstep-system}]\n"},
		{"TrustPolicy", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: lockstep.dev/v1alpha1\n  kind: TrustPolicy\n  metadata: {name: root, namespace: lockstep-system}\n  spec: {envelope: '{}'}\n"},
		{"lockstep-state", "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: lockstep-state, annotations: {lockstep.dev/delete: 'true'}}\n"},
	} {
		version := fmt.Sprintf("1.1.%d", i)
		ref, err := s.w.PushUnchecked(t.Context(), platformRelease(version, map[string]string{"evil.yaml": tc.manifest}))
		must(t, err)
		must(t, s.w.Sign(t.Context(), "release", ref))
		s.declares(t, version, ref)
		kind, _, _ := strings.Cut(tc.what, "/")
		contains(t, s.refused(t, platform, version, "ForbiddenObject"), kind)
	}
	s.keepsRunning(t)
}

func testT2(t *testing.T, s *stable) {
	loose := fmt.Sprintf("apiVersion: lockstep.dev/v1alpha1\nkind: GitSource\nmetadata: {name: fleet}\nspec:\n  cluster: %s\n  url: %s\n  ref: {branch: main}\n  path: clusters/%s\n",
		env.Cluster, s.w.Git.URL, env.Cluster)
	hash := push(t, s.w, "no signatures any more", map[string]string{declarePath + "source.yaml": loose})
	contains(t, s.rejected(t, hash, "SelfReference"), "source.yaml", "GitSource/fleet")
	other := strings.NewReplacer("name: fleet", "name: other", s.w.Git.URL, "https://evil.example.com/platform/fleet.git").Replace(loose)
	hash = push(t, s.w, "another source", map[string]string{declarePath + "source.yaml": other})
	contains(t, s.rejected(t, hash, "SelfReference"), "source.yaml", "GitSource/other")
	var source v1alpha1.GitSource
	must(t, s.w.Client.Get(t.Context(), client.ObjectKeyFromObject(sourceObject()), &source))
	if source.Spec.Verify == nil {
		t.Error("the source isn't verified any more")
	}
	s.keepsRunning(t)
	push(t, s.w, "as it was", map[string]string{declarePath + "source.yaml": ""})
}

// testT3 changes the spec in the cluster to another signed release: only Git
// selects releases.
func testT3(t *testing.T, s *stable) {
	good := release(t, s.w, platformRelease("1.1.20", nil))
	st := follow(t, s.w, platform)
	patch := fmt.Sprintf(`{"spec":{"desired":{"version":"1.1.20","image":%q}}}`, good)
	err := s.w.Client.Patch(t.Context(), releaseObject(platform), client.RawPatch(types.MergePatchType, []byte(patch)))
	if err == nil || !strings.Contains(err.Error(), "change it in Git") {
		t.Errorf("an edit answers %v, want it refused by admission", err)
	}
	withoutAdmission(t, s.w)
	// While the source is paused, nothing restores the spec; it still isn't
	// acted on.
	_, err = s.w.Lockstep(t.Context(), "pause", "gitsource/fleet", "--reason", "a look at wall 3")
	must(t, err)
	waitCondition(t, s.w, sourceObject(), v1alpha1.ConditionReady, "False", "Paused")
	edit(t, s.w, releaseObject(platform), patch)
	contains(t, waitCondition(t, s.w, releaseObject(platform), v1alpha1.ConditionReady, "False", "NotFromSource"), "GitSource/fleet")
	s.keepsRunning(t)
	_, err = s.w.Lockstep(t.Context(), "resume", "gitsource/fleet")
	must(t, err)
	waitCondition(t, s.w, releaseObject(platform), v1alpha1.ConditionReady, "True", "")
	s.editedSpecIsPutBack(t, first, patch)
	waitCondition(t, s.w, releaseObject(platform), v1alpha1.ConditionReady, "True", "")
	s.keepsRunning(t)
	if st.saw("1.1.20") {
		t.Error("1.1.20, which Git never named, was applied")
	}
	// An object that no source declares is reported and otherwise ignored.
	intruder := strings.Replace(declare("intruder", "1.1.20", good), "{name:", "{namespace: "+v1alpha1.Namespace+", name:", 1)
	must(t, s.w.Control.Apply(t.Context(), []byte(intruder)))
	waitCondition(t, s.w, releaseObject("intruder"), v1alpha1.ConditionReady, "False", "NotFromSource")
	s.keepsRunning(t)
	must(t, s.w.Client.Delete(t.Context(), releaseObject("intruder")))
	if st.saw("1.1.20") {
		t.Error("a release that no source declares was applied")
	}
}

func testT4(t *testing.T, s *stable) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "fleet-git"}}
	annotate := func(value string) {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationHosts, value)
		must(t, s.w.Client.Patch(t.Context(), secret, client.RawPatch(types.MergePatchType, []byte(patch))))
	}
	must(t, s.w.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
	hosts := secret.Annotations[v1alpha1.AnnotationHosts]
	annotate(`"git.example.com"`)
	message := waitCondition(t, s.w, sourceObject(), v1alpha1.ConditionReady, "False", "SecretNotBound")
	contains(t, message, "fleet-git", "git.example.com", "kubectl -n lockstep-system annotate")
	s.keepsRunning(t)
	annotate(fmt.Sprintf("%q", hosts))
	waitCondition(t, s.w, sourceObject(), v1alpha1.ConditionReady, "True", "")
}

// testT10 sends markup, trailers and control characters wherever a user with
// push access can write; they must stay plain text.
func testT10(t *testing.T, s *stable) {
	const evil = "`x](https://evil.example.com) <img src=x onerror=alert(1)> `` | \\u001b[31m"
	bad := strings.Replace(declare(platform, first, s.good), "spec:\n", "spec:\n  \""+evil+"\": 1\n", 1)
	message := "[click](https://evil.example.com) <img src=x>\n\nLockstep-Evil: yes\nLockstep-Condition: Ready=True Evil\n"
	hash := push(t, s.w, message, map[string]string{platformFile: bad})
	s.rejected(t, hash, "InvalidDesiredState")
	page := s.page(t, "InvalidDesiredState")
	text := outsideCode(page)
	for _, raw := range []string{"](https://evil", "<img", "onerror", "\x1b"} {
		if strings.Contains(text, raw) {
			t.Errorf("README.md holds %q where a forge would render it:\n%s", raw, text)
		}
	}
	contains(t, page, "onerror")
	s.back(t)
	log, err := s.w.Git.StatusLog(t.Context(), env.Cluster, "--format=%B")
	must(t, err)
	for _, raw := range []string{"Lockstep-Evil", "Ready=True Evil", "<img", "\x1b"} {
		if strings.Contains(log, raw) {
			t.Errorf("a status commit's message holds %q", raw)
		}
	}
	s.keepsRunning(t)
}

// outsideCode returns the lines of a page without their code spans, which begin
// and end with runs of as many backticks (CommonMark 0.31, section 6.1).
func outsideCode(page string) string {
	var out strings.Builder
	for line := range strings.Lines(page) {
		for {
			start := strings.IndexByte(line, '`')
			if start < 0 {
				break
			}
			run := len(line[start:]) - len(strings.TrimLeft(line[start:], "`"))
			end := closing(line[start+run:], run)
			if end < 0 {
				out.WriteString(line[:start+run])
				line = line[start+run:]
				continue
			}
			out.WriteString(line[:start])
			line = line[start+run+end+run:]
		}
		out.WriteString(line)
	}
	return out.String()
}

// closing finds the next run of the same number of backticks.
func closing(s string, run int) int {
	for at := 0; ; {
		next := strings.IndexByte(s[at:], '`')
		if next < 0 {
			return -1
		}
		at += next
		n := len(s[at:]) - len(strings.TrimLeft(s[at:], "`"))
		if n == run {
			return at
		}
		at += n
	}
}

// testT11 checks that the insecure option of these tests is reported.
func testT11(t *testing.T, s *stable) {
	for _, obj := range []client.Object{releaseObject(platform), sourceObject()} {
		contains(t, waitCondition(t, s.w, obj, v1alpha1.ConditionInsecure, "True", "InsecureOptions"), "--allow-loopback-registries")
	}
	contains(t, s.page(t, "Insecure"), "--allow-loopback-registries")
	all, err := s.w.Git.StatusLog(t.Context(), env.Cluster, "--format=%h %(trailers:key=Lockstep-Insecure,separator=%x2C)")
	must(t, err)
	for line := range strings.Lines(all) {
		if hash, trailer, _ := strings.Cut(strings.TrimSpace(line), " "); trailer != "Lockstep-Insecure: True" {
			t.Errorf("status commit %s says %q, want Lockstep-Insecure: True", hash, trailer)
		}
	}
}

// testPeers checks Lockstep's output with kubectl and git.
func testPeers(t *testing.T, s *stable) {
	if path, err := exec.LookPath("kubectl"); err != nil {
		t.Log("no kubectl here")
	} else {
		kubectl := func(args ...string) string {
			args = append([]string{"--kubeconfig", s.w.Control.Kubeconfig(), "-n", v1alpha1.Namespace}, args...)
			out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
			if err != nil {
				t.Errorf("kubectl %v: %v: %s", args, err, out)
			}
			return string(out)
		}
		kubectl("wait", "--for=condition=Ready", "--timeout=30s", "clusterrelease/platform", "gitsource/fleet")
		contains(t, kubectl("get", "clusterreleases"),
			"NAME", "VERSION", "PROGRESS", "AVAILABLE", "PROGRESSING", "FAILING", "SINCE", "STATUS", platform, first, "is applied")
		contains(t, kubectl("get", "gs"), "URL", "READY", "REVISION", s.w.Git.URL, "True")
		contains(t, kubectl("get", "lockstep"), "clusterrelease.lockstep.dev/platform", "gitsource.lockstep.dev/fleet", "trustpolicy.lockstep.dev/root")
	}
	public, err := os.ReadFile(s.w.Path("status-signing.pub"))
	must(t, err)
	allowed := s.w.Path("allowed-signers")
	must(t, os.WriteFile(allowed, append([]byte("status@prod "), public...), 0o600))
	log, err := s.w.Git.StatusLog(t.Context(), env.Cluster, "--format=%H")
	must(t, err)
	hashes := strings.Fields(log)
	if len(hashes) < 5 {
		t.Errorf("%d status commits, want one for each thing that happened", len(hashes))
	}
	_, err = s.w.Git.Run(t.Context(), append([]string{"-c", "gpg.ssh.allowedSignersFile=" + allowed, "verify-commit"}, hashes...)...)
	must(t, err)
}

// testT7 drops objects from a release: Lockstep deletes those that it created,
// and keeps adopted objects, objects with copied labels, and those that need
// consent.
func testT7(t *testing.T, s *stable) {
	const label = "applyset.kubernetes.io/part-of"
	cm := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: platform, Name: name}}
	}
	manifest := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: platform}\ndata: {a: b}\n"
	}
	must(t, s.w.Client.Create(t.Context(), cm("found"), client.FieldOwner("kubectl-create")))
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: platform}\nspec: {selector: {app: web}, ports: [{port: 80}]}\n"
	full := release(t, s.w, platformRelease("1.1.30", map[string]string{
		"service.yaml": service, "found.yaml": manifest("found"), "made.yaml": manifest("made"),
		"spare.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: spare}\n",
	}))
	s.declares(t, "1.1.30", full)
	waitApplied(t, s.w, platform, "1.1.30")
	slice := waitSlice(t, s.w, label)
	copied := cm("copied")
	copied.Labels = slice.Labels
	must(t, s.w.Client.Create(t.Context(), copied))

	s.declares(t, "1.1.31", release(t, s.w, platformRelease("1.1.31", map[string]string{"service.yaml": service})))
	waitApplied(t, s.w, platform, "1.1.31")
	must(t, env.Wait(t.Context(), 20*time.Second, func(ctx context.Context) error {
		if err := s.w.Client.Get(ctx, client.ObjectKeyFromObject(cm("made")), cm("made")); !apierrors.IsNotFound(err) {
			return fmt.Errorf("ConfigMap made, which left the release, is there still: %w", err)
		}
		return nil
	}))
	for _, obj := range []client.Object{cm("found"), cm("copied"), slice, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "spare"}}} {
		uid := obj.GetUID()
		if err := s.w.Client.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			t.Errorf("%T %s: %v, want it kept", obj, obj.GetName(), err)
		}
		if uid != "" && obj.GetUID() != uid || obj.GetDeletionTimestamp() != nil {
			t.Errorf("%T %s was deleted", obj, obj.GetName())
		}
	}
	s.repairs(t, "1.1.31")
}

// waitSlice returns the EndpointSlice that Kubernetes created for the Service,
// with the copied label.
func waitSlice(t *testing.T, w *env.Env, label string) *discoveryv1.EndpointSlice {
	t.Helper()
	var slice *discoveryv1.EndpointSlice
	must(t, env.Wait(t.Context(), 30*time.Second, func(ctx context.Context) error {
		var list discoveryv1.EndpointSliceList
		if err := w.Client.List(ctx, &list, client.InNamespace(platform)); err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].Labels[label] != "" {
				slice = &list.Items[i]
				return nil
			}
		}
		return fmt.Errorf("none of %d EndpointSlices has the label %s", len(list.Items), label)
	}))
	return slice
}
