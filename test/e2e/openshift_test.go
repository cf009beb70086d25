// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/test/env"
	"github.com/lockstep-dev/lockstep/test/openshift"
)

const (
	openshiftVersion = "4.99.0"
	openshiftProfile = "self-managed-high-availability"
	// maxOverrides is the maximum of spec.overrides.
	maxOverrides = 100
)

// openshiftPayload is the payload of 30 OpenShift operators. It is required
// where LOCKSTEP_SHARED is set.
func openshiftPayload(t *testing.T) fstest.MapFS {
	t.Helper()
	tree, _, err := openshift.Payload(filepath.Join("..", ".."))
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("LOCKSTEP_SHARED") == "" {
		t.Skipf("the real payload isn't here: %v; set LOCKSTEP_SHARED to its directory", err)
	}
	must(t, err)
	return tree
}

// openshiftKinds are CRDs that an OpenShift cluster has from other sources:
// the payload has objects of these kinds but doesn't provide them.
const openshiftKinds = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusteroperators.config.openshift.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: config.openshift.io
  scope: Cluster
  names: {kind: ClusterOperator, listKind: ClusterOperatorList, plural: clusteroperators, singular: clusteroperator}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: storageversionmigrations.migration.k8s.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: migration.k8s.io
  scope: Cluster
  names: {kind: StorageVersionMigration, listKind: StorageVersionMigrationList, plural: storageversionmigrations, singular: storageversionmigration}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// openshiftEnv is an environment in which the payload is declared.
type openshiftEnv struct {
	*stable
	tree    fstest.MapFS
	payload *payload.Payload
	image   string
	// overrides are the unmanaged objects.
	overrides map[payload.ObjectID]bool
}

// TestARealPayloadOnARealServer declares a real platform's payload in a
// cluster of another kind. Everything that can't be applied is reported, and
// the rest is applied; then the causes are removed, and the release completes.
func TestARealPayloadOnARealServer(t *testing.T) {
	t.Parallel()
	tree := openshiftPayload(t)
	o := &openshiftEnv{stable: &stable{w: newEnvWith(t, env.Options{Audit: true, Pods: true})}, tree: tree, overrides: map[payload.ObjectID]bool{}}
	w := o.w
	var err error
	o.payload, err = payload.LoadUnverified(tree, payload.LoadOptions{Selection: payload.Selection{Profile: openshiftProfile, Baseline: payload.BaselineAll}})
	must(t, err)
	files := map[string]string{}
	for name, file := range tree {
		files[name] = string(file.Data)
	}
	archive, err := env.Archive(files)
	must(t, err)
	o.image, err = w.PushArchive(t.Context(), platform, openshiftVersion, archive)
	must(t, err)
	must(t, w.Sign(t.Context(), "release", o.image))
	must(t, w.Control.AddNodes(t.Context(), 3, map[string]string{
		"node-role.kubernetes.io/master": "", "node-role.kubernetes.io/control-plane": "", "node-role.kubernetes.io/worker": "",
		corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
	}))
	withStamper(t, w)
	o.declare(t)
	start(t, w)

	o.isRefusedUpFront(t)
	must(t, w.Control.Apply(t.Context(), []byte(openshiftKinds)))
	refused := o.isAppliedAsFarAsItCanBe(t)
	o.completes(t, refused)

	if n := stampedMaps(t, w); n == 0 {
		t.Error("the webhook changed no ConfigMap, so that nothing of it is tested")
	} else {
		t.Logf("the webhook changed a declared field of %d ConfigMaps", n)
	}
	deployment := o.scalable(t)
	withAutoscaler(t, w, deployment)
	message := waitCondition(t, w, releaseObject(platform), v1alpha1.ConditionFieldYielded, "True", "")
	contains(t, message, deployment.Name, "/spec/replicas")
	waitApplied(t, w, platform, openshiftVersion)
	threeSyncsWriteNothing(t, w, platform)
	must(t, hasReplicas(t.Context(), w, deployment, autoscaled))
}

// declare commits the payload with the overrides.
func (o *openshiftEnv) declare(t *testing.T) {
	t.Helper()
	var b strings.Builder
	b.WriteString(declare(platform, openshiftVersion, o.image))
	b.WriteString("  profile: " + openshiftProfile + "\n  interval: 10s\n")
	if len(o.overrides) > 0 {
		b.WriteString("  overrides:\n")
	}
	for _, id := range slices.SortedFunc(maps.Keys(o.overrides), payload.ObjectID.Compare) {
		fmt.Fprintf(&b, "  - {group: %q, kind: %s, namespace: %q, name: %q, unmanaged: true, reason: not in this cluster}\n", id.Group, id.Kind, id.Namespace, id.Name)
	}
	push(t, o.w, fmt.Sprintf("openshift with %d overrides", len(o.overrides)), map[string]string{platformFile: b.String()})
}

// isRefusedUpFront waits until the payload is rejected for the kinds that
// aren't served, and checks that nothing was written.
func (o *openshiftEnv) isRefusedUpFront(t *testing.T) {
	t.Helper()
	contains(t, o.refused(t, platform, openshiftVersion, "APIRemoval"),
		"config.openshift.io/v1 ClusterOperator", "migration.k8s.io/v1alpha1 StorageVersionMigration", ".yaml:")
	var namespaces corev1.NamespaceList
	must(t, o.w.Client.List(t.Context(), &namespaces))
	for i := range namespaces.Items {
		if strings.HasPrefix(namespaces.Items[i].Name, "openshift") {
			t.Errorf("namespace %s was made of a release that is refused", namespaces.Items[i].Name)
		}
	}
}

// isAppliedAsFarAsItCanBe waits until complete syncs ended, checks that each
// missing object is accounted for, and returns the account.
func (o *openshiftEnv) isAppliedAsFarAsItCanBe(t *testing.T) map[string]logLine {
	t.Helper()
	waitSyncs(t, o.w, 0, platform, "incomplete", 2, 2*time.Minute)
	var refused map[string]logLine
	must(t, env.Wait(t.Context(), time.Minute, func(ctx context.Context) error {
		var err error
		if refused, err = o.account(); err != nil {
			return err
		}
		applied, err := o.applied(ctx)
		if err != nil {
			return err
		}
		var wrong []string
		for i := range o.payload.Manifests {
			id := o.payload.Manifests[i].ID
			if _, logged := refused[id.String()]; logged == applied[id] {
				wrong = append(wrong, fmt.Sprintf("%s: applied %t, told %t", id, applied[id], logged))
			}
		}
		if len(wrong) > 0 {
			return fmt.Errorf("%d objects are neither applied nor accounted for, or both:\n%s", len(wrong), strings.Join(wrong, "\n"))
		}
		return o.statusLists(ctx, len(refused))
	}))
	reasons := map[string]int{}
	for object, s := range refused {
		if s.Message == "" || !strings.Contains(s.Message, object) {
			t.Errorf("%s isn't level for %q: want a message that names it", object, s.Message)
		}
		reasons[s.Reason]++
	}
	if len(refused) < 20 {
		t.Errorf("%d objects refused, want more than a status has room for", len(refused))
	}
	t.Logf("%d of %d objects applied; %d told as %v", len(o.payload.Manifests)-len(refused), len(o.payload.Manifests), len(refused), reasons)
	return refused
}

// account is what the reconciler logs about objects that aren't ready.
func (o *openshiftEnv) account() (map[string]logLine, error) {
	all, err := logLines(o.w, 0)
	if err != nil {
		return nil, err
	}
	out := map[string]logLine{}
	for _, s := range all {
		switch s.Msg {
		case "manifest failed":
			out[s.Object] = s
		case "manifest recovered":
			delete(out, s.Object)
		}
	}
	return out, nil
}

// statusLists checks that the status lists as many objects as fit and counts
// the rest.
func (o *openshiftEnv) statusLists(ctx context.Context, refused int) error {
	obj, err := getRelease(ctx, o.w, platform)
	if err != nil {
		return err
	}
	p := obj.Status.Progress
	if p == nil || len(p.Blocking) != 20 || int(p.Total) != len(o.payload.Manifests) || int(p.Total-p.Done) < refused {
		return fmt.Errorf("progress is %+v, want 20 blocking objects and at least %d of %d not done", p, refused, len(o.payload.Manifests))
	}
	failing := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionFailing)
	if want := fmt.Sprintf("%d objects are not ready", refused); failing == nil || failing.Status != "True" || !strings.Contains(failing.Message, want) {
		return fmt.Errorf("Failing is %+v, want it to say %q", failing, want)
	}
	return nil
}

// applied reads from the API server which objects have the applied content.
// Create-only objects need only exist; objects to delete must not.
func (o *openshiftEnv) applied(ctx context.Context) (map[payload.ObjectID]bool, error) {
	asked, err := discovery.NewDiscoveryClientForConfig(o.w.Control.Config)
	if err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(asked)
	if err != nil {
		return nil, err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	reader, err := metadata.NewForConfig(o.w.Control.Config)
	if err != nil {
		return nil, err
	}
	lists := map[schema.GroupVersionKind]map[payload.ObjectID]bool{}
	out := map[payload.ObjectID]bool{}
	for i := range o.payload.Manifests {
		m := &o.payload.Manifests[i]
		there, known := lists[m.GVK]
		if !known {
			mapping, err := mapper.RESTMapping(m.GVK.GroupKind(), m.GVK.Version)
			if err == nil {
				if there, err = listOurs(ctx, reader, mapping); err != nil {
					return nil, err
				}
			}
			lists[m.GVK] = there
		}
		byUs, exists := there[m.ID]
		switch {
		case m.Delete:
			out[m.ID] = !exists
		case m.CreateOnly:
			out[m.ID] = exists
		default:
			out[m.ID] = byUs
		}
	}
	return out, nil
}

// listOurs lists a kind; the value reports whether the release applied the
// object.
func listOurs(ctx context.Context, reader metadata.Interface, mapping *meta.RESTMapping) (map[payload.ObjectID]bool, error) {
	list, err := reader.Resource(mapping.Resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[payload.ObjectID]bool{}
	for i := range list.Items {
		item := &list.Items[i]
		id := payload.ObjectID{Group: mapping.GroupVersionKind.Group, Kind: mapping.GroupVersionKind.Kind, Namespace: item.Namespace, Name: item.Name}
		out[id] = slices.ContainsFunc(item.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == "lockstep:clusterrelease/"+platform && f.Operation == metav1.ManagedFieldsOperationApply
		})
	}
	return out, nil
}

// completes creates the missing namespaces, makes objects unmanaged that
// can't exist here, and waits until the rest is ready.
func (o *openshiftEnv) completes(t *testing.T, refused map[string]logLine) {
	t.Helper()
	byName := map[string]payload.ObjectID{}
	for i := range o.payload.Manifests {
		byName[o.payload.Manifests[i].ID.String()] = o.payload.Manifests[i].ID
	}
	missed := map[string]bool{}
	for object, s := range refused {
		id := byName[object]
		if s.Reason == "NamespaceMissing" && id.Namespace != "" {
			missed[id.Namespace] = true
			continue
		}
		o.overrides[id] = true
	}
	for _, name := range slices.Sorted(maps.Keys(missed)) {
		must(t, client.IgnoreAlreadyExists(o.w.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})))
	}
	if len(o.overrides) > maxOverrides {
		t.Fatalf("%d overrides, a ClusterRelease takes %d", len(o.overrides), maxOverrides)
	}
	t.Logf("made namespaces %v, and left to people %d objects", slices.Sorted(maps.Keys(missed)), len(o.overrides))
	o.operatorsReport(t)
	o.declare(t)
	waitApplied(t, o.w, platform, openshiftVersion)
	obj, err := getRelease(t.Context(), o.w, platform)
	must(t, err)
	if p := obj.Status.Progress; p == nil || int(p.Total) != len(o.payload.Manifests) || p.Done != p.Total || int(p.Skipped) != len(o.overrides) {
		t.Errorf("progress is %+v, want all of %d done and %d of them skipped", p, len(o.payload.Manifests), len(o.overrides))
	}
}

// operatorsReport acts as the payload's operators: each reports that it is
// available at the versions in its manifest.
func (o *openshiftEnv) operatorsReport(t *testing.T) {
	t.Helper()
	operators := 0
	for i := range o.payload.Manifests {
		m := &o.payload.Manifests[i]
		if m.ID.Kind != "ClusterOperator" {
			continue
		}
		operators++
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(m.GVK)
		must(t, o.w.Client.Get(t.Context(), client.ObjectKey{Name: m.ID.Name}, live))
		var conditions []any
		for kind, status := range map[string]string{"Available": "True", "Progressing": "False", "Degraded": "False", "Upgradeable": "True"} {
			conditions = append(conditions, map[string]any{
				"type": kind, "status": status, "reason": "AsExpected", "message": "", "lastTransitionTime": "2026-11-30T00:00:00Z",
			})
		}
		live.Object["status"] = map[string]any{"conditions": conditions, "versions": o.versionsOf(t, m)}
		must(t, o.w.Client.Status().Update(t.Context(), live))
	}
	t.Logf("%d operators report that they are available", operators)
}

// versionsOf reads from the payload's file the versions that a ClusterOperator
// must report.
func (o *openshiftEnv) versionsOf(t *testing.T, m *payload.Manifest) []any {
	t.Helper()
	file, ok := o.tree[m.File]
	if !ok {
		t.Fatalf("the payload has no file %s", m.File)
	}
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(file.Data), 4096); ; {
		var document map[string]any
		must(t, decoder.Decode(&document))
		found := unstructured.Unstructured{Object: document}
		if found.GetKind() == m.ID.Kind && found.GetName() == m.ID.Name {
			versions, _, err := unstructured.NestedSlice(document, "status", "versions")
			must(t, err)
			return versions
		}
	}
}

// scalable returns a Deployment of the payload with one replica in its
// manifest.
func (o *openshiftEnv) scalable(t *testing.T) client.ObjectKey {
	t.Helper()
	for i := range o.payload.Manifests {
		m := &o.payload.Manifests[i]
		if m.ID.Kind != "Deployment" || m.CreateOnly || m.Delete || o.overrides[m.ID] {
			continue
		}
		if n, found, err := unstructured.NestedInt64(m.Object.Object, "spec", "replicas"); found && err == nil && n == 1 && !bytes.Contains(m.JSON, []byte("lockstep.dev/ssa")) {
			return client.ObjectKey{Namespace: m.ID.Namespace, Name: m.ID.Name}
		}
	}
	t.Fatal("no Deployment of the payload has one replica")
	return client.ObjectKey{}
}
