// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
)

func sampleEntries() []entry {
	return []entry{
		{
			Group: "apps", Version: "v1", Kind: "Deployment", Namespace: "web", Name: "api", RunLevel: 30, Order: 7, Created: true,
			UID: "2f0c8a2e-4d0e-4f0e-9f6e-0d8f5f6e7a10", ResourceVersion: "4711", Generation: 3, Desired: d("h"), Entry: d("e"), Values: d("m"), Status: d("s"), Foreign: d("f"),
			Yields: []Yield{{Pointer: "/spec/replicas", Manager: "horizontal-pod-autoscaler", Value: d("2")}}, epoch: -1,
		},
		{Version: "v1", Kind: "Namespace", Name: "web", Confirmed: true, epoch: -1},
	}
}

// The golden file is what version 1 writes; a later version must read it.
func TestInventoryFormatIsStable(t *testing.T) {
	golden, err := os.ReadFile("testdata/inventory-1.jsonl")
	must(t, err)
	got, err := encodeEntries(sampleEntries())
	must(t, err)
	if diff := cmp.Diff(string(golden), got); diff != "" {
		t.Errorf("format 1 changed (-golden +got):\n%s\na change needs a new version that reads the old one", diff)
	}
	back, problems := decodeEntries(string(golden))
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
	want := sampleEntries()
	if diff := cmp.Diff([]entry{want[1], want[0]}, back, cmp.AllowUnexported(entry{})); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestInventoryOfTheNextVersionIsReadWithItsUnknownFields(t *testing.T) {
	got, problems := decodeEntries(`{"v":"v1","k":"ConfigMap","ns":"a","n":"b","u":"uid","new":{"x":[1]}}`)
	if len(problems) > 0 || len(got) != 1 || got[0].UID != "uid" {
		t.Errorf("%+v %v", got, problems)
	}
}

func TestUnreadableLinesAreToldAndLeftOut(t *testing.T) {
	got, problems := decodeEntries("{}\nnonsense\n" + `{"v":"v1","k":"ConfigMap","n":"b","h":"short"}` + "\n" + `{"v":"v1","k":"ConfigMap","n":"good"}`)
	if len(got) != 1 || got[0].Name != "good" || len(problems) != 3 {
		t.Errorf("%+v\n%q", got, problems)
	}
	if _, problems := decodeEntries(strings.Repeat("x", maxLine+2)); len(problems) != 1 {
		t.Errorf("an endless line: %q", problems)
	}
}

func FuzzDecodeEntries(f *testing.F) {
	text, err := encodeEntries(sampleEntries())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("")
	f.Add("{\"v\":\"v1\"}\n\n[]")
	f.Fuzz(func(t *testing.T, data string) {
		entries, _ := decodeEntries(data)
		again, err := encodeEntries(entries)
		if err != nil {
			t.Fatal(err)
		}
		back, problems := decodeEntries(again)
		if len(problems) > 0 {
			t.Fatalf("what was read can't be read back: %q", problems)
		}
		if diff := cmp.Diff(entries, back, cmp.AllowUnexported(entry{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-first +second):\n%s", diff)
		}
	})
}

func TestLargeInventoryIsSharded(t *testing.T) {
	r := newRig(t)
	var text strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d, namespace: NS}\n", i)
	}
	ms := r.manifests(text.String())
	must(t, r.engine.Begin(t.Context(), ms, nil))
	if n := len(r.inventoryVersions()); n != 2 {
		t.Errorf("%d shards for 1500 objects, want 2", n)
	}
	r.restart()
	if n := r.engine.Size(); n != 1500 {
		t.Errorf("%d objects after the restart, want 1500", n)
	}
}

func TestInventoryIsWrittenBeforeTheFirstObject(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)
	must(t, r.engine.Begin(t.Context(), ms, nil))
	r.kill() // A crash before, or in the middle of, the first apply.
	r.start()
	if n := r.engine.Size(); n != len(ms) {
		t.Errorf("%d objects are known after the crash, want %d", n, len(ms))
	}
}

func TestSecondWriterOfTheInventoryIsRefused(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)
	r.apply(ms, Updating)
	shard, err := r.kube.CoreV1().ConfigMaps(ownNamespace).Get(t.Context(), r.engine.store.name(0), metav1.GetOptions{})
	must(t, err)
	more, err := encodeEntries([]entry{{Version: "v1", Kind: "ConfigMap", Namespace: r.ns, Name: "theirs"}})
	must(t, err)
	shard.Data[keyEntries] += more
	_, err = r.kube.CoreV1().ConfigMaps(ownNamespace).Update(t.Context(), shard, metav1.UpdateOptions{})
	must(t, err)
	err = r.engine.Begin(t.Context(), append(ms, r.manifests("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more, namespace: NS}")...), nil)
	var refused *Error
	if !errors.As(err, &refused) || refused.Reason() != ReasonInventoryFailed {
		t.Errorf("err = %v, want InventoryFailed", err)
	}
	must(t, r.engine.Flush(t.Context())) // What they wrote was taken in.
}

func TestInventoryOfAFarVersionIsRefused(t *testing.T) {
	r := newRig(t)
	_, err := r.kube.CoreV1().ConfigMaps(ownNamespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: r.engine.store.name(0), Labels: map[string]string{labelInventory: r.engine.store.label}},
		Data:       map[string]string{keyFormat: "7", keyOwner: r.owner, keyShard: "0"},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = r.engine.Load(t.Context())
	var refused *Error
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "format") {
		t.Errorf("err = %v, want a refusal of format 7", err)
	}
}

func TestInventoryIsAnApplySet(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)
	r.apply(ms, Updating)
	parent, err := r.kube.CoreV1().ConfigMaps(ownNamespace).Get(t.Context(), r.engine.store.name(0), metav1.GetOptions{})
	must(t, err)
	want := map[string]string{
		annotationTooling:    "lockstep/v1",
		annotationKinds:      "ConfigMap,Deployment.apps,NetworkPolicy.networking.k8s.io,Secret,Service,ServiceAccount",
		annotationNamespaces: r.ns,
	}
	if diff := cmp.Diff(want, parent.Annotations); diff != "" {
		t.Errorf("annotations of the parent (-want +got):\n%s", diff)
	}
	id := parent.Labels[labelApplySetID]
	if len(id) > 63 || id == "" {
		t.Errorf("id %q", id)
	}
	for i := range ms {
		if got := r.get(ms[i].ID).GetLabels()[labelPartOf]; got != id {
			t.Errorf("%s is part of %q, want %q", ms[i].ID, got, id)
		}
	}
}

func TestForgetLeavesTheObjects(t *testing.T) {
	r := newRig(t)
	ms := r.manifests(webSet)[:1]
	r.apply(ms, Updating)
	must(t, r.engine.Forget(t.Context()))
	if n := len(r.inventoryVersions()); n != 0 {
		t.Errorf("%d shards are left", n)
	}
	if !r.exists(payload.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "settings"}) {
		t.Error("the object is gone")
	}
}
