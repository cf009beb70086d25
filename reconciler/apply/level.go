// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Record is what we remember of an object from the answer to our last apply.
// It is compared with the live object, never with the manifest: admission may
// have changed what we sent, and that isn't drift.
type Record struct {
	UID             types.UID
	ResourceVersion string
	Generation      int64
	// Desired is the shortened hash of the manifest that was applied.
	Desired live.Digest
	// Entry and Values are those of our manager; both are zero if it holds
	// nothing, which is legal.
	Entry, Values live.Digest
	// Status and Foreign are those of everybody else.
	Status, Foreign live.Digest
	// Epoch is that of the kind's watch when the record was made; -1 for a
	// record that was read back.
	Epoch int
}

// recordOf makes the record of an answer.
func recordOf(answer *live.Object, manager string, desired live.Digest, epoch int) Record {
	own, _ := answer.OwnFieldsOf(manager)
	return Record{
		UID: answer.UID, ResourceVersion: answer.ResourceVersion, Generation: answer.Generation,
		Desired: desired, Entry: own.Entry, Values: own.Values,
		Status: answer.Status, Foreign: answer.OtherManagers, Epoch: epoch,
	}
}

// Verdict is what a look at the cache says of an object.
type Verdict int

// The judgements, by rule R1.
const (
	// InSync needs no request.
	InSync Verdict = iota
	// Done is a Job that came to its end and was removed: it isn't run again.
	Done
	// Unclear needs one verifying apply: something changed that our entry
	// doesn't show.
	Unclear
	// Drifted needs an apply: a field of ours was changed or taken.
	Drifted
	// Missing needs an apply: the object is gone, or another has its name.
	Missing
	// Dying is being deleted: wait, then create.
	Dying
	// Unseen means that the kind isn't watched: only a request can tell.
	Unseen
)

// String returns the judgement's name.
func (j Verdict) String() string {
	return [...]string{"Level", "Done", "Unclear", "Drifted", "Missing", "Dying", "Unseen"}[j]
}

// Compare decides by rule R1 whether the object that view shows is still as the
// recorded apply left it. It is pure.
//
// In this order: what isn't newer than the record says nothing; another UID,
// absence or deletion is plain; a changed entry, or changed values of our
// labels and annotations, is drift; then a kind that counts its generations
// tells by them, and any other kind is level only if nothing but its status
// was written.
func Compare(rec Record, gk schema.GroupKind, manager string, view live.View) Verdict {
	switch view.State {
	case live.Unknown:
		return Unseen
	case live.Absent:
		return judgeAbsent(rec, view)
	case live.Present:
	}
	o := view.Object
	if o.UID == rec.UID {
		if o.ResourceVersion == rec.ResourceVersion {
			return InSync
		}
		if older(o.ResourceVersion, rec.ResourceVersion) {
			if rec.Epoch == view.Epoch && !o.Merged {
				return InSync // An event from before our apply.
			}
			return Unclear // The versions went back.
		}
	} else if rec.Epoch == view.Epoch && !o.Merged && older(o.ResourceVersion, rec.ResourceVersion) {
		return InSync // An event of the object's predecessor.
	}
	return judgeNewer(rec, gk, manager, o)
}

func judgeAbsent(rec Record, view live.View) Verdict {
	switch {
	case rec.Epoch == view.Epoch && older(view.AsOf, rec.ResourceVersion):
		return InSync // The event of our own apply is still on its way.
	case (view.Finished || view.Failed) && view.Ended == rec.UID:
		return Done
	default:
		return Missing
	}
}

func judgeNewer(rec Record, gk schema.GroupKind, manager string, o *live.Object) Verdict {
	own, _ := o.OwnFieldsOf(manager)
	switch {
	case o.Deleting:
		return Dying
	case o.UID != rec.UID:
		return Missing
	case own.Entry != rec.Entry || own.Values != rec.Values:
		return Drifted
	case kinds.Of(gk).Generations:
		if o.Generation == rec.Generation {
			return InSync
		}
		return Unclear
	case !o.Merged && o.Status != rec.Status && o.OtherManagers == rec.Foreign:
		return InSync // A status write.
	default:
		return Unclear
	}
}

// older reports whether resource version a comes before b. Versions that
// don't compare aren't older: then one request tells.
func older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}

// The pace of requests for one object that never comes to rest.
const (
	verifyEvery     = 5 * time.Second
	verifySlowly    = time.Minute
	verifiesAtOnce  = 6
	quietAfter      = 10 * time.Minute
	contestsAtOnce  = 3
	contestBackoff  = time.Second
	contestLongest  = 5 * time.Minute
	refusedShortest = 2 * time.Second
)

// pace remembers how often an object cost a request lately. The zero pace is
// that of a quiet object.
type pace struct {
	verifies    int
	lastVerify  time.Time
	contests    int
	lastContest time.Time
	refusals    int
	lastRefusal time.Time
	// unsure tells that a write was seen that only a verification can judge.
	// A later event may hide it again: a status write after a write that left
	// no trace looks like a status write.
	unsure bool
}

// verifyAt is the earliest time of the next verifying apply.
func (p *pace) verifyAt() time.Time {
	switch {
	case p.verifies == 0:
		return time.Time{}
	case p.verifies < verifiesAtOnce:
		return p.lastVerify.Add(verifyEvery)
	default:
		return p.lastVerify.Add(verifySlowly)
	}
}

// repairAt is the earliest time of the next repair: at once for the first
// few, then ever later, so that two writers that are both right don't spin.
func (p *pace) repairAt() time.Time {
	at := p.lastRefusal.Add(backoff(p.refusals, refusedShortest))
	if p.contests < contestsAtOnce {
		return at
	}
	if contest := p.lastContest.Add(backoff(p.contests-contestsAtOnce+1, contestBackoff)); contest.After(at) {
		return contest
	}
	return at
}

// backoff is shortest, doubled with each turn, up to contestLongest; 0 for no
// turn.
func backoff(turns int, shortest time.Duration) time.Duration {
	if turns <= 0 {
		return 0
	}
	return min(shortest<<min(turns-1, 16), contestLongest)
}

func (p *pace) verified(now time.Time) {
	if now.Sub(p.lastVerify) > quietAfter {
		p.verifies = 0
	}
	p.verifies++
	p.lastVerify = now
}

// contested counts a drift that somebody else made.
func (p *pace) contested(now time.Time) {
	if now.Sub(p.lastContest) > quietAfter {
		p.contests = 0
	}
	p.contests++
	p.lastContest = now
}

func (p *pace) refused(now time.Time) {
	p.refusals++
	p.lastRefusal = now
}

func (p *pace) accepted() { p.refusals, p.unsure = 0, false }

// remember returns j, or Unclear as long as the verification of an earlier
// look is due.
func (p *pace) remember(j Verdict) Verdict {
	if j == Unclear {
		p.unsure = true
	}
	if j == InSync && p.unsure {
		return Unclear
	}
	return j
}
