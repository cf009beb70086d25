// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strconv"
	"testing"
	"time"
	"unique"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

const testManager = "lockstep:clusterrelease/x"

func d(s string) live.Hash { return inventory.HashOf(s) }

// recorded returns the record of an apply with version 100 and generation 3.
func recorded() inventory.Record {
	return inventory.Record{UID: "u", ResourceVersion: "100", Generation: 3, Desired: d("h"), Entry: d("e"), Values: d("m"), Status: d("s"), Others: d("f")}
}

// shown returns the object as that apply left it, with another version.
func shown(version string, change ...func(*live.Object)) live.View {
	o := &live.Object{
		UID: "u", ResourceVersion: version, Generation: 3, Status: d("s"), OtherManagers: d("f"),
		OwnFields: []live.OwnFields{{Manager: unique.Make(testManager), Entry: d("e"), Values: d("m")}},
	}
	for _, c := range change {
		c(o)
	}
	return live.View{State: live.Present, Object: o, AsOf: version}
}

func TestSyncDecision(t *testing.T) {
	deployment := schema.GroupKind{Group: "apps", Kind: "Deployment"}
	configMap := schema.GroupKind{Kind: "ConfigMap"}
	priority := schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}
	custom := schema.GroupKind{Group: "example.com", Kind: "Widget"}
	entry := func(o *live.Object) { o.OwnFields[0].Entry = d("other") }
	values := func(o *live.Object) { o.OwnFields[0].Values = d("other") }
	taken := func(o *live.Object) { o.OwnFields = nil }
	status := func(o *live.Object) { o.Status = d("other") }
	others := func(o *live.Object) { o.OtherManagers = d("other") }
	generation := func(o *live.Object) { o.Generation = 4 }
	merged := func(o *live.Object) { o.Merged = true }
	terminating := func(o *live.Object) { o.Deleting = true }
	uid := func(o *live.Object) { o.UID = "v" }
	for name, tc := range map[string]struct {
		kind schema.GroupKind
		view live.View
		want Verdict
	}{
		"the recorded version is in sync":                        {deployment, shown("100"), InSync},
		"the recorded version with other digests":                {deployment, shown("100", entry), InSync},
		"an older event is in sync":                              {deployment, shown("99", entry, generation), InSync},
		"a list with an older version is unclear":                {deployment, shown("99", merged), Unclear},
		"a changed entry is drift":                               {deployment, shown("101", entry), Drifted},
		"a lost entry is drift":                                  {configMap, shown("101", taken), Drifted},
		"a changed label value is drift":                         {configMap, shown("101", values), Drifted},
		"drift precedes a status write":                          {configMap, shown("101", entry, status), Drifted},
		"the same generation is in sync":                         {deployment, shown("101", status, others), InSync},
		"another generation with the same entry is unclear":      {deployment, shown("101", generation), Unclear},
		"custom resources count generations":                     {custom, shown("101", generation), Unclear},
		"a status write without generations is in sync":          {configMap, shown("101", status), InSync},
		"a status write from a list is unclear":                  {configMap, shown("101", status, merged), Unclear},
		"another manager's write without generations is unclear": {configMap, shown("101", others), Unclear},
		"a status write with another manager's is unclear":       {configMap, shown("101", status, others), Unclear},
		"a write without a trace is unclear":                     {configMap, shown("101"), Unclear},
		"PriorityClass counts no generations":                    {priority, shown("101"), Unclear},
		"another object of the name is missing":                  {deployment, shown("101", uid), Missing},
		"an event of the predecessor is in sync":                 {deployment, shown("99", uid), InSync},
		"a deleted object is terminating":                        {deployment, shown("101", terminating), Terminating},
		"absence as of a newer version is missing":               {deployment, live.View{State: live.Absent, AsOf: "101"}, Missing},
		"absence as of an older version is in sync":              {deployment, live.View{State: live.Absent, AsOf: "99"}, InSync},
		"a finished and removed Job is done":                     {deployment, live.View{State: live.Absent, AsOf: "101", Ended: "u", Finished: true}, Done},
		"a Job whose predecessor finished is missing":            {deployment, live.View{State: live.Absent, AsOf: "101", Ended: "before", Finished: true}, Missing},
		"an unwatched kind is unwatched":                         {deployment, live.View{}, Unwatched},
		"absence in another epoch is missing":                    {deployment, live.View{State: live.Absent, AsOf: "99", Epoch: 1}, Missing},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Compare(recorded(), tc.kind, testManager, tc.view); got != tc.want {
				t.Errorf("Compare = %s, want %s", got, tc.want)
			}
		})
	}
}

// After a status write, a change that managedFields don't show, such as another
// order of a list, is still noticed.
func TestAStatusWriteHidesNoLaterChange(t *testing.T) {
	service := schema.GroupKind{Kind: "Service"}
	status := func(o *live.Object) { o.Status = d("other") }
	written := shown("101", status)
	if got := Compare(recorded(), service, testManager, written); got != InSync {
		t.Fatalf("the status write is %s, want InSync", got)
	}
	rec := statusWritten(recorded(), written)
	for version, want := range map[string]Verdict{"100": InSync, "101": InSync, "102": Unclear} {
		if got := Compare(rec, service, testManager, shown(version, status)); got != want {
			t.Errorf("version %s after the status write is %s, want %s", version, got, want)
		}
	}
	for name, view := range map[string]live.View{
		"an older event":          shown("99", status),
		"another manager's write": shown("101", func(o *live.Object) { o.OtherManagers = d("other") }),
		"another object":          shown("101", func(o *live.Object) { o.UID = "v" }),
		"no object":               {State: live.Absent, AsOf: "101"},
	} {
		if got := statusWritten(recorded(), view); got != recorded() {
			t.Errorf("%s changed the record to %+v", name, got)
		}
	}
}

// Two status writes within one second have the same entry; the content
// distinguishes them from other changes.
func TestStatusWritesWithinOneSecondAreInSync(t *testing.T) {
	body := func(ports, address string) func(*live.Object) {
		return func(o *live.Object) {
			o.Body = &unstructured.Unstructured{Object: map[string]any{
				"metadata": map[string]any{"resourceVersion": o.ResourceVersion},
				"spec":     map[string]any{"ports": ports}, "status": map[string]any{"address": address},
			}}
		}
	}
	it := &item{id: payload.ObjectID{Kind: "Service"}, entry: &inventory.Slot{Entry: inventory.Entry{Record: recorded()}}}
	for _, step := range []struct {
		name string
		view live.View
		want Verdict
	}{
		{"without a body", shown("101"), Unclear},
		{"the apply", shown("100", body("80,443", "")), InSync},
		{"a status write", shown("101", body("80,443", "192.0.2.1")), InSync},
		{"another one", shown("102", body("80,443", "192.0.2.2")), InSync},
		{"another order", shown("103", body("443,80", "192.0.2.2")), Unclear},
	} {
		if got := it.compare(testManager, step.view); got != step.want {
			t.Errorf("%s is %s, want %s", step.name, got, step.want)
		}
	}
}

func TestObjectWithoutAnEntryIsInSyncUntilOneAppears(t *testing.T) {
	rec := recorded()
	rec.Entry, rec.Values = live.Hash{}, live.Hash{}
	none := func(o *live.Object) { o.OwnFields = nil }
	if got := Compare(rec, schema.GroupKind{Kind: "ConfigMap"}, testManager, shown("101", none, func(o *live.Object) { o.Status = d("other") })); got != InSync {
		t.Errorf("without an entry: %s, want InSync", got)
	}
	if got := Compare(rec, schema.GroupKind{Kind: "ConfigMap"}, testManager, shown("101")); got != Drifted {
		t.Errorf("with an entry: %s, want Drifted", got)
	}
}

func TestLoadedRecordIsNeverNewerThanTheCluster(t *testing.T) {
	rec := recorded()
	rec.Epoch = -1
	if got := Compare(rec, schema.GroupKind{Group: "apps", Kind: "Deployment"}, testManager, shown("99")); got != Unclear {
		t.Errorf("an older version after a restart: %s, want Unclear, as after an etcd restore", got)
	}
	if got := Compare(rec, schema.GroupKind{Group: "apps", Kind: "Deployment"}, testManager, shown("100")); got != InSync {
		t.Errorf("the same version after a restart: %s, want InSync", got)
	}
}

// For every view: a newer change of the set's fields is detected, and an older
// event costs no request.
func TestSyncDecisionProperties(t *testing.T) {
	measured := []schema.GroupKind{{Kind: "ConfigMap"}, {Group: "apps", Kind: "Deployment"}, {Group: "example.com", Kind: "Widget"}, {Kind: "Service"}}
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(measured).Draw(t, "kind")
		version := rapid.IntRange(90, 110).Draw(t, "version")
		flip := func(name string) bool { return rapid.Bool().Draw(t, name) }
		sameEntry, sameValues, sameUID, merged := flip("entry"), flip("values"), flip("uid"), flip("merged")
		view := shown(strconv.Itoa(version), func(o *live.Object) {
			if !sameEntry {
				o.OwnFields[0].Entry = d("other")
			}
			if !sameValues {
				o.OwnFields[0].Values = d("other")
			}
			if !sameUID {
				o.UID = "v"
			}
			if !flip("status") {
				o.Status = d("other")
			}
			if !flip("others") {
				o.OtherManagers = d("other")
			}
			o.Generation = rapid.Int64Range(3, 4).Draw(t, "generation")
			o.Merged = merged
		})
		got := Compare(recorded(), kind, testManager, view)
		switch {
		case version > 100 && sameUID && (!sameEntry || !sameValues) && got != Drifted:
			t.Fatalf("a change of the set's fields is %s", got)
		case version > 100 && !sameUID && got != Missing:
			t.Fatalf("another object is %s", got)
		case version < 100 && !merged && got != InSync:
			t.Fatalf("an old event is %s", got)
		case version == 100 && sameUID && got != InSync:
			t.Fatalf("the recorded version is %s", got)
		case version > 100 && view.Object.Generation == 4 && got == InSync && kinds.Of(kind).Generations:
			t.Fatal("a new generation is InSync")
		}
	})
}

func TestPaceBacksOffAndResets(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	var p pace
	for i := range contestsAtOnce {
		if p.repairAt().After(now) {
			t.Fatalf("repair %d is delayed", i)
		}
		p.repaired(now)
	}
	last := time.Duration(0)
	for range 20 {
		wait := p.repairAt().Sub(now)
		if wait < last || wait > contestLongest || wait <= 0 {
			t.Fatalf("delay %s after %s", wait, last)
		}
		last = wait
		p.repaired(now)
	}
	if last != contestLongest {
		t.Errorf("the longest delay is %s, want %s", last, contestLongest)
	}
	now = now.Add(quietAfter + time.Second)
	p.repaired(now)
	if p.repairAt().After(now) {
		t.Errorf("a repair after a quiet time is delayed")
	}
}

func TestVerificationsArePaced(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	var p pace
	if p.verifyAt().After(now) {
		t.Error("the first verification is delayed")
	}
	p.verified(now)
	if got := p.verifyAt().Sub(now); got != verifyEvery {
		t.Errorf("the second is delayed by %s, want %s", got, verifyEvery)
	}
	for range verifiesAtOnce {
		p.verified(now)
	}
	if got := p.verifyAt().Sub(now); got != verifySlowly {
		t.Errorf("after many it is delayed by %s, want %s", got, verifySlowly)
	}
}

func TestEachObjectIsVerifiedOncePerPeriod(t *testing.T) {
	started := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	const period = 24 * time.Hour
	for n := range 50 {
		it := &item{entry: &inventory.Slot{Entry: inventory.Entry{Record: inventory.Record{Desired: inventory.HashOf(n)}}}}
		turns := 0
		for at := started; at.Before(started.Add(3 * period)); at = at.Add(scanEvery) {
			if turnWithin(it, started, at, at.Add(scanEvery), period) {
				turns++
			}
		}
		if turns < 2 || turns > 3 {
			t.Errorf("object %d was verified %d times in three periods", n, turns)
		}
	}
}
