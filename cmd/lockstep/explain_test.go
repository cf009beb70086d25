// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/excluded"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// explained is a cluster with a source, a release and the release's objects,
// applied by the real engine; nobody repairs anything.
type explained struct {
	t       *testing.T
	cluster *controlplane.Cluster
	client  client.Client
	engine  *apply.Engine
	maps    typedcorev1.ConfigMapInterface
	release *v1alpha1.ClusterRelease
}

const explainedNamespace = "explained"

func newExplained(t *testing.T) *explained {
	t.Helper()
	e := &explained{t: t, cluster: controlplane.SharedWithKinds(t)}
	scheme, err := newScheme()
	e.must(err)
	e.client, err = client.New(e.cluster.Config, client.Options{Scheme: scheme})
	e.must(err)
	for _, name := range []string{v1alpha1.Namespace, explainedNamespace} {
		e.must(client.IgnoreAlreadyExists(e.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})))
	}
	e.declare()
	kube, err := kubernetes.NewForConfig(e.cluster.Config)
	e.must(err)
	e.maps = kube.CoreV1().ConfigMaps(v1alpha1.Namespace)
	cache, err := live.New(live.Config{REST: e.cluster.Config, Now: time.Now, Log: logr.Discard()})
	e.must(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // Cleanup ends it.
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cache.Start(ctx)
	}()
	e.engine, err = apply.New(apply.Config{
		Owner: "clusterrelease/explained", REST: e.cluster.Config, Live: cache, Inventory: e.maps,
		Shared: apply.NewShared(apply.DefaultConcurrency), Now: time.Now,
	})
	e.must(err)
	t.Cleanup(func() {
		e.engine.Close()
		cancel()
		<-done
	})
	_, err = e.engine.Load(t.Context())
	e.must(err)
	return e
}

func (e *explained) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// declare makes the source and the release, with the status that the
// reconciler would have written.
func (e *explained) declare() {
	e.t.Helper()
	now := metav1.NewTime(time.Now().Add(-4 * time.Minute))
	source := &v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Name: "explained", Namespace: v1alpha1.Namespace},
		Spec: v1alpha1.GitSourceSpec{
			Cluster: "prod", URL: "https://git.example.com/fleet.git", Ref: v1alpha1.GitRef{Branch: "main"}, Path: "clusters/prod",
			Interval: metav1.Duration{Duration: time.Minute}, Timeout: metav1.Duration{Duration: time.Minute},
		},
	}
	e.create(source)
	source.Status.AcceptedRevision = &v1alpha1.Revision{
		Revision: "main@sha1:9f2c1ab4c1c1a4d3a7f0f3ab7d6f8d4a3c2b1a09", Subject: "platform 1.4.2", Signer: "admin-1 (ssh SHA256:Xk3Q)", Time: now,
	}
	e.must(e.client.Status().Update(e.t.Context(), source))
	e.release = &v1alpha1.ClusterRelease{
		ObjectMeta: metav1.ObjectMeta{
			Name: "explained", Namespace: v1alpha1.Namespace, Annotations: map[string]string{v1alpha1.AnnotationSource: "explained"},
		},
		Spec: v1alpha1.ClusterReleaseSpec{
			Desired: v1alpha1.DesiredRelease{Version: "1.5.0", Image: "registry.example.com/platform/release@sha256:" + strings.Repeat("4", 64)},
			Overrides: []v1alpha1.Override{
				{Kind: "ConfigMap", Namespace: explainedNamespace, Name: "hotfixed", Unmanaged: true, Reason: "hotfix"},
			},
			Timeout: metav1.Duration{Duration: time.Hour}, Interval: metav1.Duration{Duration: time.Minute},
		},
	}
	e.create(e.release)
	e.release.Status = v1alpha1.ClusterReleaseStatus{
		Accepted: &v1alpha1.ReleaseRef{Version: "1.4.2", Verified: true, Evidence: []string{"release-2026"}},
		Applied:  &v1alpha1.ReleaseRef{Version: "1.4.2"},
		Payload:  &v1alpha1.PayloadStatus{Warnings: 1, Excluded: 2},
		Progress: &v1alpha1.ReleaseProgress{
			State: "Updating", Summary: "2/4", Done: 2, Total: 4, RunLevel: 2,
			Blocking: []v1alpha1.Blocking{{Object: "ConfigMap explained/refused", Since: &now, Reason: "WebhookDenied", Message: "policy: no"}},
		},
		Warnings: []string{"HostSkew: kubelets are old"},
		Conditions: []metav1.Condition{
			{Type: "Ready", Status: "False", Reason: "ThresholdNotMet", Message: "1.5.0 refused, 1.4.2 goes on", LastTransitionTime: now},
			{Type: "ReleaseAccepted", Status: "False", Reason: "ThresholdNotMet", Message: "has 1 of 2 signatures", LastTransitionTime: now},
			{Type: "Failing", Status: "False", Reason: "AsExpected", Message: "nothing fails", LastTransitionTime: now},
		},
	}
	e.must(e.client.Status().Update(e.t.Context(), e.release))
}

// create makes an object that goes with the test.
func (e *explained) create(obj client.Object) {
	e.t.Helper()
	e.must(e.client.Create(e.t.Context(), obj))
	e.t.Cleanup(func() {
		_ = e.client.Delete(context.WithoutCancel(e.t.Context()), obj)
	})
}

// configMap is a manifest with one value.
func (e *explained) configMap(name string) payload.Manifest {
	e.t.Helper()
	m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name, "namespace": explainedNamespace},
		"data":     map[string]any{"key": "declared"},
	}})
	e.must(err)
	return m
}

// apply applies all but the last manifest; that one waits for its turn.
func (e *explained) apply(names ...string) {
	e.t.Helper()
	var manifests []payload.Manifest
	for i, name := range names {
		m := e.configMap(name)
		m.RunLevel = 10 * (i + 1)
		manifests = append(manifests, m)
	}
	e.must(e.engine.Begin(e.t.Context(), manifests, nil))
	for i := range manifests[:len(manifests)-1] {
		_, err := e.engine.Apply(e.t.Context(), &manifests[i], apply.Updating)
		e.must(err)
	}
	e.must(e.engine.Flush(e.t.Context()))
}

func (e *explained) patch(name, manager, body string) {
	e.t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: explainedNamespace, Name: name}}
	e.must(e.client.Patch(e.t.Context(), cm, client.RawPatch(types.MergePatchType, []byte(body)), client.FieldOwner(manager)))
}

// contains runs the command and requires each of the words in its output.
func (e *explained) contains(arg string, words ...string) {
	e.t.Helper()
	out, err := e.run(arg)
	e.must(err)
	for _, w := range words {
		if !strings.Contains(out, w) {
			e.t.Errorf("explain %s lacks %q:\n%s", arg, w, out)
		}
	}
}

func (e *explained) run(arg string) (string, error) {
	cmd := newExplainCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{arg, "--kubeconfig", e.cluster.Kubeconfig()})
	err := cmd.ExecuteContext(e.t.Context())
	return out.String(), err
}

func TestExplainFollowsTheChainFromTheCommitToTheLiveObject(t *testing.T) {
	e := newExplained(t)
	e.apply("synced", "drifted", "touched", "gone", "later")
	e.patch("drifted", "kubectl-edit", `{"data":{"key":"edited"}}`)
	e.patch("touched", "other-controller", `{"data":{"more":"added"}}`)
	e.must(e.client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: explainedNamespace, Name: "gone"}}))
	e.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: explainedNamespace, Name: "other"}})

	e.contains("configmap/explained/synced", "ConfigMap explained/synced   in sync with ClusterRelease/explained 1.4.2",
		`commit    main@sha1:9f2c1ab "platform 1.4.2", signed by admin-1`, "GitSource/explained", "desires 1.5.0",
		"1.4.2 accepted and complete, signed by release-2026", "run level 10; created by the release",
		"rejected  1.5.0; still running 1.4.2: ThresholdNotMet: has 1 of 2 signatures", "lockstep:clusterrelease/explained")
	e.contains("cm/explained/drifted", "drifted", "the last other writer is kubectl-edit", "repaired automatically")
	e.contains("configmaps/explained/touched", "probably in sync", "another manager wrote the object", "other-controller")
	e.contains("ConfigMap/explained/gone", "deleted, though ClusterRelease/explained 1.4.2 declares it", "live      not found")
	e.contains("configmap/explained/later", "not applied yet", "in run level 50 of ClusterRelease/explained, which is at run level 2 (2/4)")
	e.contains("configmap/explained/other", "not managed: no release declares it")
	e.must(excluded.New(e.maps, "explained").Record(t.Context(), &payload.Payload{Version: "1.4.2", Skipped: []payload.Skipped{
		{ID: e.configMap("optional").ID, File: "release-manifests/0000_50_web_00.yaml", Line: 7, Reason: payload.SkipCapability, Detail: "capability Console isn't enabled"},
		{ID: e.configMap("other").ID, File: "release-manifests/0000_50_web_01.yaml", Line: 1, Reason: payload.SkipProfile, Detail: "only for profile edge"},
	}}))
	e.contains("configmap/explained/optional", "not found: excluded by ClusterRelease/explained 1.4.2: Capability: capability Console isn't enabled (release-manifests/0000_50_web_00.yaml:7)",
		"spec.profile, featureSet, featureGates or capabilities")
	e.contains("configmap/explained/other", "not managed: excluded by ClusterRelease/explained 1.4.2: Profile: only for profile edge")
	e.contains("configmap/explained/nowhere", "not found; no release declares it")
	e.contains("configmap/explained/hotfixed", "unmanaged by an override of ClusterRelease/explained: hotfix")
	e.contains("configmap/explained/refused", "not ready for ClusterRelease/explained 1.4.2: WebhookDenied: policy: no", "for 4m", "rejected the object")
	e.contains("clusterrelease/explained", "not ready, ThresholdNotMet", "has 1 of 2 signatures", "retried automatically: yes", "blocking  ConfigMap explained/refused", "doesn't resolve automatically",
		"payload   2 documents excluded, 1 warnings",
		"warning   HostSkew: kubelets are old")
	e.contains("apps/Deployment/explained/api", "apps Deployment explained/api   not found")
	e.contains("gitsource/explained", "accepted  main@sha1:9f2c1ab", "check that lockstep-reconciler is running")

	e.pause()
	e.contains("configmap/explained/drifted", "repaired once ClusterRelease/explained is resumed: paused: incident")
}

func (e *explained) pause() {
	e.t.Helper()
	body := `{"metadata":{"annotations":{"` + v1alpha1.AnnotationPaused + `":"incident"}}}`
	e.must(e.client.Patch(e.t.Context(), e.release, client.RawPatch(types.MergePatchType, []byte(body))))
}

func TestExplainRefusesNamesThatItCannotRead(t *testing.T) {
	e := &explained{t: t, cluster: controlplane.SharedWithKinds(t)}
	for arg, want := range map[string]string{
		"configmap/synced":             "is namespaced",
		"namespace/a/b":                "isn't namespaced",
		"nosuchkind/a/b":               "serves no such kind",
		"configmap//b":                 "empty part",
		"apps/Deployment/a/b/c":        "is namespaced",
		"Unheard":                      "neither",
		"deployments.extensions.x/a/b": "serves no such kind",
	} {
		if out, err := e.run(arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("explain %s: %q, %v; want an error with %q", arg, out, err, want)
		}
	}
}

func TestExplainShowsThatAnObjectInSyncIsUnhealthy(t *testing.T) {
	sick := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": "Progressing", "status": "True"}, map[string]any{"type": "Available", "status": "False"},
	}}}}
	if got := unhealthyCondition(sick); !strings.Contains(got, "Available=False") {
		t.Errorf("a Deployment without pods: %q", got)
	}
	if got := unhealthyCondition(&unstructured.Unstructured{Object: map[string]any{}}); got != "" {
		t.Errorf("an object without conditions: %q", got)
	}
}

func TestExplainKnowsReasonsWithoutACluster(t *testing.T) {
	var out bytes.Buffer
	if err := explainReason(&out, "Unsigned"); err != nil || !strings.Contains(out.String(), "retried automatically: yes") {
		t.Errorf("%q, %v", out.String(), err)
	}
}
