// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

func TestDecideReturnsTheRequiredStep(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	desired := [32]byte{1}
	entryNow := func(change ...func(*inventory.Entry)) *inventory.Entry {
		en := &inventory.Entry{}
		rec := recorded()
		rec.Desired = live.Hash(desired[:live.HashSize])
		en.Record = rec
		for _, c := range change {
			c(en)
		}
		return en
	}
	manifest := func(change ...func(*payload.Manifest)) *payload.Manifest {
		m := &payload.Manifest{ID: payload.ObjectID{Group: "apps", Kind: "Deployment", Name: "x"}, Hash: desired}
		for _, c := range change {
			c(m)
		}
		return m
	}
	drift := func(o *live.Object) { o.OwnFields[0].Entry = d("other") }
	generation := func(o *live.Object) { o.Generation++ }
	createOnly := func(m *payload.Manifest) { m.CreateOnly = true }
	newHash := func(m *payload.Manifest) { m.Hash = [32]byte{2} }
	gone := live.View{State: live.Absent, AsOf: "200"}
	busy := &pace{contests: contestsAtOnce + 3, lastContest: now}
	for name, tc := range map[string]struct {
		en      *inventory.Entry
		p       *pace
		m       *payload.Manifest
		view    live.View
		want    step
		changed bool
	}{
		"an object that was never applied":              {&inventory.Entry{}, &pace{}, manifest(), gone, stepInitial, true},
		"an object in sync":                             {entryNow(), &pace{}, manifest(), shown("100"), stepNone, false},
		"a changed manifest of an object in sync":       {entryNow(), &pace{}, manifest(newHash), shown("100"), stepApply, true},
		"a changed manifest isn't delayed by a contest": {entryNow(), busy, manifest(newHash), shown("101", drift), stepApply, true},
		"drift":              {entryNow(), &pace{}, manifest(), shown("101", drift), stepApply, false},
		"drift in a contest": {entryNow(), busy, manifest(), shown("101", drift), stepDefer, false},
		"an unclear object":  {entryNow(), &pace{}, manifest(), shown("101", generation), stepVerify, false},
		"an unclear object that was just verified":     {entryNow(), &pace{verifies: 1, lastVerify: now}, manifest(), shown("101", generation), stepDefer, false},
		"an object of an unwatched kind":               {entryNow(), &pace{}, manifest(), live.View{}, stepVerify, false},
		"a missing object":                             {entryNow(), &pace{}, manifest(), gone, stepApply, false},
		"a finished Job that was deleted":              {entryNow(func(e *inventory.Entry) { e.Finished = true }), &pace{}, manifest(), gone, stepNone, false},
		"a finished Job during a watch outage":         {entryNow(func(e *inventory.Entry) { e.Finished = true }), &pace{}, manifest(), live.View{}, stepNone, false},
		"a failed Job during a watch outage":           {entryNow(func(e *inventory.Entry) { e.Failed = true }), &pace{}, manifest(), live.View{}, stepNone, false},
		"a changed finished Job during a watch outage": {entryNow(func(e *inventory.Entry) { e.Finished = true }), &pace{}, manifest(newHash), live.View{}, stepApply, true},
		"drift of a create-only object":                {entryNow(), &pace{}, manifest(createOnly), shown("101", drift), stepNone, false},
		"a changed manifest of a create-only object":   {entryNow(), &pace{}, manifest(createOnly, newHash), shown("101"), stepNone, false},
		"a missing create-only object":                 {entryNow(), &pace{}, manifest(createOnly), gone, stepApply, false},
		"a create-only object of an unwatched kind":    {entryNow(), &pace{}, manifest(createOnly), live.View{}, stepNone, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(tc.en, tc.p, tc.m, testManager, tc.view, now)
			if got.step != tc.want || got.changed != tc.changed {
				t.Errorf("decide = step %d changed %t (%s), want step %d changed %t", got.step, got.changed, got.verdict, tc.want, tc.changed)
			}
			if got.step == stepDefer && !got.until.After(now) {
				t.Error("delayed until now")
			}
		})
	}
}

func TestEndOfAJobIsNotAttributedToItsSuccessor(t *testing.T) {
	it := &item{id: payload.ObjectID{Group: "batch", Kind: "Job", Name: "x"}, entry: &inventory.Slot{Entry: inventory.Entry{Record: recorded()}}}
	if it.jobEnded(live.View{State: live.Absent, AsOf: "99", Ended: "before", Finished: true}) || it.entry.Finished {
		t.Error("the end of the predecessor finished the Job")
	}
	if !it.jobEnded(live.View{State: live.Absent, AsOf: "101", Ended: "u", Finished: true}) || !it.entry.Finished {
		t.Error("a finished Job isn't recorded as finished")
	}
}

func TestPrepareReturnsTheRequestsBeforeThePatch(t *testing.T) {
	entry := func(manager, subresource string) metav1.ManagedFieldsEntry {
		operation := metav1.ManagedFieldsOperationUpdate
		if strings.HasPrefix(manager, live.ManagerPrefix) {
			operation = metav1.ManagedFieldsOperationApply
		}
		fields := &metav1.FieldsV1{}
		fields.SetRawString(`{"f:spec":{"f:replicas":{}}}`)
		return metav1.ManagedFieldsEntry{
			Manager: manager, Subresource: subresource, Operation: operation, APIVersion: "apps/v1", FieldsType: "FieldsV1", FieldsV1: fields,
		}
	}
	ours := entry(testManager, "")
	written := func(entries ...metav1.ManagedFieldsEntry) *observation {
		o := live.Summarize(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			UID: "u", ResourceVersion: "101", ManagedFields: append([]metav1.ManagedFieldsEntry{ours}, entries...),
		}})
		o.Shared = true
		return &observation{exists: true, object: o, verdict: Drifted}
	}
	adopted := func(entries ...metav1.ManagedFieldsEntry) *observation {
		return &observation{exists: true, initial: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ManagedFields: entries}}}
	}
	initial := adopted()
	for name, tc := range map[string]struct {
		o        *observation
		change   func(*request, *state)
		takeOver bool
		yield    bool
		compare  bool
		refused  bool
	}{
		"a missing object":                             {o: &observation{}},
		"an object that the set never applied":         {o: initial, takeOver: true},
		"a pre-existing create-only object":            {o: initial, change: func(r *request, _ *state) { r.m.CreateOnly = true }},
		"drift by a controller":                        {o: written(entry("operator", ""))},
		"drift by a controller of a contested object":  {o: written(entry("operator", "")), change: func(_ *request, s *state) { s.contested = true }, yield: true},
		"an object that an autoscaler scaled before":   {o: adopted(entry("hpa", "scale")), takeOver: true, yield: true},
		"a forced one":                                 {o: adopted(entry("hpa", "scale")), change: func(r *request, _ *state) { r.m.ForceFields = true }, takeOver: true},
		"an object that a user scaled before":          {o: adopted(entry("kubectl", "scale")), takeOver: true},
		"drift by an autoscaler":                       {o: written(entry("hpa", "scale")), yield: true},
		"drift by an autoscaler of a forced object":    {o: written(entry("hpa", "scale")), change: func(r *request, _ *state) { r.m.ForceFields = true }},
		"drift by a user's scale":                      {o: written(entry("kubectl", "scale"))},
		"a changed manifest of a scaled object":        {o: written(entry("hpa", "scale")), change: func(r *request, _ *state) { r.mode, r.decision.changed = Updating, true }, yield: true},
		"a changed manifest of a contested object":     {o: written(entry("operator", "")), change: func(r *request, s *state) { r.mode, r.decision.changed, s.contested = Updating, true, true }, compare: true},
		"a changed manifest of an object with kubectl": {o: written(entry("kubectl-edit", "")), change: func(r *request, _ *state) { r.decision.changed = true }, takeOver: true},
		"a changed manifest of a shared object":        {o: written(entry("operator", "")), change: func(r *request, _ *state) { r.decision.changed = true }, compare: true},
		"ignored fields of a changed manifest": {o: written(), change: func(r *request, _ *state) {
			r.m.IgnoreFields, r.decision.changed = []string{"/spec/replicas"}, true
		}, takeOver: true},
		"ignored fields of an unchanged entry": {o: written(), change: func(r *request, s *state) {
			own, _ := written().object.OwnFieldsOf(testManager)
			r.m.IgnoreFields, s.record.Entry = []string{"/spec/replicas"}, own.Entry
		}},
		"an object of another set": {o: written(entry("lockstep:clusterrelease/other", "")), refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := object(t, "v1", "ConfigMap", "x", nil)
			r, s := &request{m: &m, mode: Reconciling, decision: decision{step: stepApply}}, state{manager: testManager}
			s.record.ResourceVersion = "100"
			if tc.change != nil {
				tc.change(r, &s)
			}
			p, err := prepare(r, tc.o, s)
			if (err != nil) != tc.refused || (p.takeOver != nil) != tc.takeOver || (p.yield != nil) != tc.yield || p.compare != tc.compare {
				t.Errorf("prepare: takeOver %t, yield %t, compare %t, err %v", p.takeOver != nil, p.yield != nil, p.compare, err)
			}
		})
	}
}
