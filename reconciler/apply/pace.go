// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import "time"

// The limits of repeated requests for one object.
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

// pace counts the recent requests for one object. The zero pace allows the next
// one at once.
type pace struct {
	verifies    int
	lastVerify  time.Time
	contests    int
	lastContest time.Time
	refusals    int
	lastRefusal time.Time
	// unclear is set until the next accepted apply: a later event may hide the
	// write that requires a verification, as a status write does.
	unclear bool
}

// verifyAt returns the earliest time of the next verifying apply.
func (p *pace) verifyAt() time.Time {
	switch {
	case p.verifies == 0:
		return time.Time{}
	case !p.verifiedOften():
		return p.lastVerify.Add(verifyEvery)
	default:
		return p.lastVerify.Add(verifySlowly)
	}
}

// repairAt returns the earliest time of the next repair: at once for the first
// few, then with growing delays, so that two competing writers don't loop.
func (p *pace) repairAt() time.Time {
	at := p.lastRefusal.Add(backoff(p.refusals, refusedShortest))
	if !p.contested() {
		return at
	}
	if contest := p.lastContest.Add(backoff(p.contests-contestsAtOnce+1, contestBackoff)); contest.After(at) {
		return contest
	}
	return at
}

// contested reports whether another writer repeatedly changes the object.
func (p *pace) contested() bool { return p.contests >= contestsAtOnce }

// backoff returns shortest, doubled per further turn, at most contestLongest; 0
// for no turn.
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

// verifiedOften reports whether the object is verified again and again.
func (p *pace) verifiedOften() bool { return p.verifies >= verifiesAtOnce }

// repaired counts the repair of a drift.
func (p *pace) repaired(now time.Time) {
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

func (p *pace) accepted() { p.refusals, p.unclear = 0, false }

// remember returns v, or Unclear instead of InSync while the verification of an
// earlier event is due.
func (p *pace) remember(v Verdict) Verdict {
	if v == Unclear {
		p.unclear = true
	}
	if v == InSync && p.unclear {
		return Unclear
	}
	return v
}
