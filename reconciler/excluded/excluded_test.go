// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package excluded

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// configMaps returns a client for a new namespace.
func configMaps(t *testing.T) typedcorev1.ConfigMapInterface {
	t.Helper()
	client, err := kubernetes.NewForConfig(controlplane.Shared(t).Config)
	must(t, err)
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "excluded-"}}, metav1.CreateOptions{})
	must(t, err)
	return client.CoreV1().ConfigMaps(ns.Name)
}

var console = payload.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "console"}

func excluding(version, detail string) *payload.Payload {
	return &payload.Payload{Version: version, Skipped: []payload.Skipped{
		{ID: payload.ObjectID{Kind: "ConfigMap", Name: "other"}, File: "a.yaml", Line: 1, Reason: payload.SkipProfile},
		{ID: console, File: "release-manifests/0000_50_console_00.yaml", Line: 7, Reason: payload.SkipCapability, Detail: detail},
	}}
}

func TestFindReturnsOnlyCurrentEntries(t *testing.T) {
	maps := configMaps(t)
	recorder := New(maps, "platform")
	for _, step := range []struct {
		payload *payload.Payload
		want    string
	}{
		{excluding("1.0.0", "capability Console isn't enabled"), "platform 1.0.0 Capability capability Console isn't enabled release-manifests/0000_50_console_00.yaml:7"},
		{excluding("1.1.0", "other"), "platform 1.1.0 Capability other release-manifests/0000_50_console_00.yaml:7"},
		{&payload.Payload{Version: "1.2.0"}, ""},
		{excluding("1.3.0", "again"), "platform 1.3.0 Capability again release-manifests/0000_50_console_00.yaml:7"},
	} {
		must(t, recorder.Record(t.Context(), step.payload))
		found, err := Find(t.Context(), maps, console)
		must(t, err)
		var got []string
		for _, f := range found {
			got = append(got, fmt.Sprintf("%s %s %s %s %s", f.Release, f.Version, f.Reason, f.Detail, f.Place))
		}
		if diff := cmp.Diff(step.want, strings.Join(got, "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.payload.Version, diff)
		}
	}
	must(t, Delete(t.Context(), maps, "platform"))
	must(t, Delete(t.Context(), maps, "platform"))
	if found, err := Find(t.Context(), maps, console); err != nil || len(found) > 0 {
		t.Errorf("found %v, %v of a deleted release", found, err)
	}
}

func TestAnUnchangedPayloadIsRecordedOnce(t *testing.T) {
	maps := configMaps(t)
	p := excluding("1.0.0", "x")
	must(t, New(maps, "platform").Record(t.Context(), p))
	before, err := maps.Get(t.Context(), nameOf("platform"), metav1.GetOptions{})
	must(t, err)
	second := New(maps, "platform") // As after a restart.
	again := *p
	must(t, second.Record(t.Context(), &again))
	after, err := maps.Get(t.Context(), nameOf("platform"), metav1.GetOptions{})
	must(t, err)
	if before.ResourceVersion != after.ResourceVersion {
		t.Error("an unchanged record was written again")
	}
	must(t, Delete(t.Context(), maps, "platform"))
	must(t, second.Record(t.Context(), &again))
	if _, err := maps.Get(t.Context(), nameOf("platform"), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a recorded payload caused a request: %v", err)
	}
}

// After a conflict with another writer, the controller's retry succeeds.
func TestAConflictIsResolvedByARetry(t *testing.T) {
	maps := configMaps(t)
	recorder := New(maps, "platform")
	must(t, recorder.Record(t.Context(), excluding("1.0.0", "x")))
	must(t, New(maps, "platform").Record(t.Context(), excluding("2.0.0", "y")))
	if err := recorder.Record(t.Context(), excluding("1.1.0", "z")); !apierrors.IsConflict(err) {
		t.Errorf("write over another writer's record: %v", err)
	}
	must(t, recorder.Record(t.Context(), excluding("1.1.0", "z")))
}

func TestTheRecordIsBounded(t *testing.T) {
	p := &payload.Payload{Version: "1.0.0"}
	for i := range 20_000 {
		p.Skipped = append(p.Skipped, payload.Skipped{ID: payload.ObjectID{Kind: "ConfigMap", Name: fmt.Sprint(i)}, File: strings.Repeat("f", 100), Detail: strings.Repeat("d", 200)})
	}
	data := dataOf("platform", p)
	if len(data[keyEntries]) > maxBytes || len(data[keyEntries]) < maxBytes/2 || data[keyTotal] != "20000" {
		t.Errorf("%d bytes, total %s", len(data[keyEntries]), data[keyTotal])
	}
	if n := len(nameOf(strings.Repeat("x", 253))); n > 253 {
		t.Errorf("a name of %d bytes", n)
	}
	if _, err := findIn(map[string]string{keyFormat: "3"}, console); err == nil {
		t.Error("an unsupported format was read")
	}
}
