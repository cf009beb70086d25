// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"
	"time"

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
		rec.Desired = live.Digest(desired[:live.DigestSize])
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
