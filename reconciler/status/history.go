// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/config/version"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// States of an entry.
const (
	completed = string(worker.HistoryCompleted)
	partial   = string(worker.HistoryPartial)
)

// history merges the releases started by this process into the previous history.
// Both lists are newest first. Facts older than the newest entry are recorded
// already: a pruned entry isn't added again.
func history(prev []v1alpha1.ReleaseHistory, facts []worker.HistoryFact, rollback *v1alpha1.Rollback) []v1alpha1.ReleaseHistory {
	out := slices.Clone(prev)
	added := unrecorded(out, facts)
	next := 0
	for k := added; k < len(facts); k++ {
		if i := place(out[next:], facts, k); i >= 0 {
			update(&out[next+i], &facts[k])
			next += i + 1
		}
	}
	for k := added - 1; k >= 0; k-- {
		out = startEntry(out, &facts[k], rollback)
	}
	return prune(out)
}

// unrecorded returns the number of facts after the newest entry.
func unrecorded(list []v1alpha1.ReleaseHistory, facts []worker.HistoryFact) int {
	if len(list) == 0 {
		return len(facts)
	}
	for k := range facts {
		if started(&list[0], &facts[k]) {
			return k
		}
	}
	if last := len(facts) - 1; last >= 0 && resumed(&list[0], &facts[last]) {
		return last
	}
	return len(facts)
}

// place returns the index of the entry of fact k, -1 if it was pruned.
func place(list []v1alpha1.ReleaseHistory, facts []worker.HistoryFact, k int) int {
	if i := slices.IndexFunc(list, func(h v1alpha1.ReleaseHistory) bool { return started(&h, &facts[k]) }); i >= 0 {
		return i
	}
	if k < len(facts)-1 {
		return -1
	}
	at := stamp(facts[k].Started)
	i := slices.IndexFunc(list, func(h v1alpha1.ReleaseHistory) bool { return h.StartedTime.Before(at) })
	if i >= 0 && resumed(&list[i], &facts[k]) {
		return i
	}
	return -1
}

// started reports whether the entry is the fact's own.
func started(h *v1alpha1.ReleaseHistory, f *worker.HistoryFact) bool {
	return sameEntry(h, f.Release) && h.StartedTime.Equal(stamp(f.Started))
}

// resumed reports whether the fact, the first of its process, continues the entry
// of an earlier process.
func resumed(h *v1alpha1.ReleaseHistory, f *worker.HistoryFact) bool {
	return sameEntry(h, f.Release) && h.StartedTime.Before(stamp(f.Started))
}

// sameEntry reports whether the entry is about the release. Each revision of a
// path is a release of its own.
func sameEntry(h *v1alpha1.ReleaseHistory, r worker.Release) bool {
	return r.Identity.Equal(payload.IdentityOf(h)) &&
		(r.Path == "" || h.Revision == sanitize.Clip(r.Revision, maxRevision))
}

// update updates an entry. A completed entry stays completed, and facts that only
// an earlier process had stay.
func update(h *v1alpha1.ReleaseHistory, f *worker.HistoryFact) {
	if h.State != completed {
		h.State = string(f.State)
		if ended := stamp(f.Ended); ended != nil {
			h.CompletionTime = ended
		}
	}
	h.Verified, h.Evidence = f.Verified, clipAll(f.Evidence, maxEvidence, maxLine)
	if f.Checked {
		h.AcceptedRisks = sanitize.Clip(strings.Join(f.AcceptedRisks, "; "), maxRisks)
	}
	if f.Revision != "" {
		h.Revision = sanitize.Clip(f.Revision, maxRevision)
	}
}

// startEntry adds an entry and ends the previous one.
func startEntry(list []v1alpha1.ReleaseHistory, f *worker.HistoryFact, rollback *v1alpha1.Rollback) []v1alpha1.ReleaseHistory {
	h := v1alpha1.ReleaseHistory{Version: f.Version, Image: f.Image, Path: f.Path, StartedTime: *stamp(f.Started)}
	update(&h, f)
	if len(list) > 0 {
		if rollback != nil && rollback.To == f.Version && version.IsRollback(list[0].Version, f.Version) {
			h.RollbackReason = sanitize.Clip(rollback.Reason, maxRisks)
		}
		if list[0].CompletionTime == nil {
			ended := h.StartedTime
			list[0].CompletionTime = &ended
		}
	}
	return slices.Insert(list, 0, h)
}

// prune drops the entries with the lowest rank.
func prune(list []v1alpha1.ReleaseHistory) []v1alpha1.ReleaseHistory {
	for len(list) > maxHistory {
		ranks := ranked(list)
		drop := 0
		for i := range ranks {
			if ranks[i] < ranks[drop] {
				drop = i
			}
		}
		list = slices.Delete(list, drop, drop+1)
	}
	return list
}

// Ranks of entries, with the weights of OpenShift's history: the newest, the
// first and the last completed entry stay; the first and last of a minor version
// outrank others; attempts between two patch versions and old entries go first.
const (
	rankPinned     = 1000.0
	rankMinorEnd   = 30.0
	rankTransition = 20.0
	rankPatch      = -20.0
	rankAge        = -1.01
	newestPinned   = 5
)

// ranked returns the rank of each entry.
func ranked(list []v1alpha1.ReleaseHistory) []float64 {
	minors := make([]string, len(list))
	first, last := map[string]int{}, map[string]int{}
	latest := -1
	for i := range list {
		minors[i] = minorOf(list[i].Version)
		if list[i].State != completed {
			continue
		}
		if latest < 0 {
			latest = i
		}
		if _, seen := last[minors[i]]; !seen {
			last[minors[i]] = i
		}
		first[minors[i]] = i
	}
	ranks := make([]float64, len(list))
	for i := range list {
		ranks[i] = rankAge * float64(i)
		if i < newestPinned || i == latest || i == len(list)-1 {
			ranks[i] += rankPinned
		}
		switch {
		case list[i].State != completed && withinMinor(list, minors, i):
			ranks[i] += rankPatch
		case list[i].State != completed:
			ranks[i] += rankTransition
		case first[minors[i]] == i || last[minors[i]] == i:
			ranks[i] += rankMinorEnd
		}
	}
	return ranks
}

// withinMinor reports whether the completed entries next to entry i have its minor
// version.
func withinMinor(list []v1alpha1.ReleaseHistory, minors []string, i int) bool {
	for j := i + 1; j < len(list); j++ {
		if list[j].State == completed {
			if minors[j] != minors[i] {
				return false
			}
			break
		}
	}
	for j := i - 1; j >= 0; j-- {
		if list[j].State == completed {
			return minors[j] == minors[i]
		}
	}
	return true
}

// minorOf returns the minor version of a version, and a version that isn't
// semantic unchanged.
func minorOf(of string) string {
	v, err := version.Parse(of)
	if err != nil {
		return of
	}
	return fmt.Sprintf("%d.%d", v.Major, v.Minor)
}
