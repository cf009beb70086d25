// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// factOf returns a release that started at start plus at and, if done, completed
// a minute later.
func factOf(version string, at time.Duration, done bool) worker.HistoryFact {
	h := worker.HistoryFact{Release: release(version, imageA), State: worker.HistoryPartial, Started: start.Add(at)}
	h.Checked = true
	if done {
		h.State, h.Ended = worker.HistoryCompleted, h.Started.Add(time.Minute)
	}
	return h
}

// entries formats the entries, newest first.
func entries(list []v1alpha1.ReleaseHistory) []string {
	var out []string
	for i := range list {
		out = append(out, list[i].Version+" "+list[i].State)
	}
	return out
}

func TestHistoryContinuesAfterARestart(t *testing.T) {
	list := history(nil, []worker.HistoryFact{factOf("1.0.0", 0, true)}, nil)
	// A new process continues 1.0.0, then updates to 1.1.0, then to 1.0.0 again.
	restarted := []worker.HistoryFact{factOf("1.0.0", time.Hour, true)}
	list = history(list, restarted, nil)
	if len(list) != 1 {
		t.Fatalf("a restart added an entry: %v", list)
	}
	restarted = append([]worker.HistoryFact{factOf("1.1.0", 2*time.Hour, false)}, restarted...)
	list = history(list, restarted, nil)
	restarted = append([]worker.HistoryFact{factOf("1.0.0", 3*time.Hour, true)}, restarted...)
	list = history(history(list, restarted, nil), restarted, nil)
	if diff := cmp.Diff([]string{"1.0.0 Completed", "1.1.0 Partial", "1.0.0 Completed"}, entries(list)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if list[1].CompletionTime == nil {
		t.Error("a superseded entry has no completion time")
	}
}

// A process that resumes an update doesn't evaluate its preconditions again and
// has no waived violations.
func TestAResumedUpdateKeepsItsAcceptedRisks(t *testing.T) {
	first := factOf("1.1.0", 0, false)
	first.AcceptedRisks = []string{"GiantHop: two minors"}
	again := factOf("1.1.0", time.Hour, true)
	again.Checked = false
	list := history(history(nil, []worker.HistoryFact{first}, nil), []worker.HistoryFact{again}, nil)
	if len(list) != 1 || list[0].AcceptedRisks != "GiantHop: two minors" || list[0].State != completed {
		t.Errorf("history: %+v", list)
	}
}

func TestEachRevisionOfAPathIsARelease(t *testing.T) {
	at := func(path, revision string, when time.Duration) worker.HistoryFact {
		f := factOf("1.0.0", when, true)
		f.Image, f.Path, f.Revision = "", path, revision
		return f
	}
	var facts []worker.HistoryFact
	for i, f := range []worker.HistoryFact{at("site", "main@sha1:1", 0), at("other", "main@sha1:1", time.Hour), at("other", "main@sha1:2", 2*time.Hour)} {
		facts = slices.Insert(facts, 0, f)
		list := history(nil, facts, nil)
		if len(list) != i+1 || list[0].Path != f.Path || list[0].Revision != f.Revision {
			t.Errorf("history after %s at %s: %+v", f.Path, f.Revision, list)
		}
	}
	list := history(history(nil, facts[1:], nil), facts[:1], nil)
	if len(list) != 3 {
		t.Errorf("another revision of a path continued the previous entry: %+v", list)
	}
}

func TestTheHistoryHasTheReasonOfARollback(t *testing.T) {
	rollback := &v1alpha1.Rollback{To: "1.0.0", Reason: "1.1 loses data"}
	facts := []worker.HistoryFact{factOf("1.1.0", time.Hour, true), factOf("1.0.0", 0, true)}
	list := history(nil, facts, rollback)
	facts = slices.Insert(facts, 0, factOf("1.0.0", 2*time.Hour, false))
	list = history(list, facts, rollback)
	list = history(list, facts, nil) // spec.rollback is consumed
	var got []string
	for i := range list {
		got = append(got, list[i].RollbackReason)
	}
	if diff := cmp.Diff([]string{"1.1 loses data", "", ""}, got); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

// Every reconciliation passes all facts, also those of pruned entries.
func TestAPrunedEntryIsNotAddedAgain(t *testing.T) {
	var list []v1alpha1.ReleaseHistory
	var facts []worker.HistoryFact
	for i := range maxHistory + 20 {
		facts = slices.Insert(facts, 0, factOf(fmt.Sprintf("1.0.%d", i), time.Duration(i)*time.Hour, i%2 == 0))
		facts = facts[:min(len(facts), maxHistory)]
		list = history(list, facts, nil)
	}
	if diff := cmp.Diff(list, history(list, facts, nil)); diff != "" {
		t.Errorf("the same facts once more (-before +after):\n%s", diff)
	}
	if len(list) != maxHistory || list[0].Version != "1.0.119" || list[0].CompletionTime != nil {
		t.Errorf("%d entries, the newest is %+v", len(list), list[0])
	}
}

func TestEntriesOfLowRankArePrunedFirst(t *testing.T) {
	// Newest first: c is completed, p partial.
	list := func(entries ...string) (out []v1alpha1.ReleaseHistory) {
		for i, e := range entries {
			version, state, _ := strings.Cut(e, " ")
			h := v1alpha1.ReleaseHistory{Version: version, State: partial, StartedTime: metav1.NewTime(start.Add(-time.Duration(i) * time.Hour))}
			if state == "c" {
				h.State = completed
			}
			out = append(out, h)
		}
		return out
	}
	newest := []string{"2.9.9 p", "2.9.8 p", "2.9.7 p", "2.9.6 p", "2.9.5 p"}
	for name, tc := range map[string]struct {
		entries []string
		drop    string
	}{
		"an attempt between patch versions is first":     {[]string{"1.2.9 c", "1.2.8 c", "1.2.7 p", "1.2.6 c", "1.1.9 p", "1.1.8 c", "1.0.0 c"}, "1.2.7"},
		"then a completed patch within a minor version":  {[]string{"1.2.9 c", "1.2.8 c", "1.2.6 c", "1.1.9 p", "1.1.8 c", "1.0.0 c"}, "1.2.8"},
		"then an attempt at another minor version":       {[]string{"1.2.9 c", "1.2.6 c", "1.1.9 p", "1.1.8 c", "1.0.0 c"}, "1.1.9"},
		"then the ends of a minor version, oldest first": {[]string{"1.2.9 c", "1.2.6 c", "1.1.8 c", "1.0.0 c"}, "1.1.8"},
		"the last completed and the first entry stay":    {[]string{"1.2.9 c", "1.2.6 c", "1.0.0 p"}, "1.2.6"},
	} {
		all := list(append(slices.Clone(newest), tc.entries...)...)
		ranks := ranked(all)
		lowest := slices.Index(ranks, slices.Min(ranks))
		if got := all[lowest].Version; got != tc.drop {
			t.Errorf("%s: %s has the lowest rank, want %s (%v)", name, got, tc.drop, ranks)
		}
	}
}

func TestAnyHistoryIsBoundedAndStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []v1alpha1.ReleaseHistory
		var facts []worker.HistoryFact
		at := time.Duration(0)
		versions := []string{"1.0.0", "1.0.1", "1.1.0", "2.0.0", "next"}
		check := func() {
			list = history(list, facts, nil)
			if again := history(list, facts, nil); !reflect.DeepEqual(list, again) {
				t.Fatalf("the same facts once more (-before +after):\n%s", cmp.Diff(list, again))
			}
			checkHistory(t, list, facts)
		}
		for range rapid.IntRange(1, 300).Draw(t, "events") {
			at += time.Duration(rapid.IntRange(1, 4).Draw(t, "seconds")) * time.Second
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0:
				facts = nil // another process
			case 1, 2:
				if len(facts) > 0 && facts[0].State == worker.HistoryPartial {
					facts = slices.Clone(facts)
					facts[0].State, facts[0].Ended = worker.HistoryCompleted, start.Add(at)
				}
			default:
				version := rapid.SampledFrom(versions).Draw(t, "version")
				if len(facts) > 0 && facts[0].Version == version {
					continue // A worker doesn't start the release that it runs.
				}
				facts = slices.Clone(facts)
				if len(facts) > 0 && facts[0].Ended.IsZero() {
					facts[0].Ended = start.Add(at)
				}
				facts = append([]worker.HistoryFact{factOf(version, at, false)}, facts[:min(len(facts), maxHistory-1)]...)
			}
			if rapid.IntRange(0, 2).Draw(t, "check") > 0 {
				check()
			}
		}
		check()
	})
}

func checkHistory(t *rapid.T, list []v1alpha1.ReleaseHistory, facts []worker.HistoryFact) {
	if len(list) > maxHistory {
		t.Fatalf("%d entries", len(list))
	}
	if len(facts) > 0 && (list[0].Version != facts[0].Version || list[0].State != string(facts[0].State) && list[0].State != completed) {
		t.Fatalf("the newest entry is %s %s, and %s is %s", list[0].Version, list[0].State, facts[0].Version, facts[0].State)
	}
	for i := range list {
		if i == 0 {
			continue
		}
		if list[i].CompletionTime == nil {
			t.Fatalf("entry %d, %s, has no completion time", i, list[i].Version)
		}
		if !list[i].StartedTime.Before(&list[i-1].StartedTime) {
			t.Fatalf("entry %d started at %s, the newer one at %s", i, list[i].StartedTime, list[i-1].StartedTime)
		}
	}
}
