// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// stepKind is what is to be done for an object.
type stepKind int

const (
	stepNone   stepKind = iota // It is level.
	stepDefer                  // It isn't, but cost too much lately.
	stepFirst                  // It was never applied by this set.
	stepApply                  // Its manifest changed, or it drifted.
	stepVerify                 // One request has to tell.
)

// decision is what decide found.
type decision struct {
	step      stepKind
	judgement Verdict
	changed   bool // The manifest is another than the recorded one.
	failed    bool // A Job that is done had failed.
	until     time.Time
}

// desiredOf shortens the manifest's hash as records keep it.
func desiredOf(m *payload.Manifest) live.Digest { return live.Digest(m.Hash[:live.DigestSize]) }

// decide is pure but for the lock.
func (e *Engine) decide(it *item, m *payload.Manifest, view live.View) decision {
	e.mu.Lock() // The pace remembers what was unclear.
	defer e.mu.Unlock()
	return decide(&it.entry, &it.pace, m, e.manager, view, e.cfg.Now())
}

// decide says what an object needs, from its record, its pace and what the
// cache shows.
func decide(en *entry, p *pace, m *payload.Manifest, manager string, view live.View, now time.Time) decision {
	if !en.applied() {
		return decision{step: stepFirst, judgement: Missing, changed: true}
	}
	j := p.remember(Compare(en.record(), m.ID.GroupKind(), manager, view))
	if (en.Finished || en.Failed) && (j == Missing && view.State == live.Absent || j == Unseen) {
		j = Done // Its TTL removes it; a watch that is down doesn't show that it isn't there.
	}
	d := decision{step: stepNone, judgement: j, failed: j == Done && (en.Failed || view.Failed && view.Ended == en.UID)}
	switch {
	case m.CreateOnly:
		if j == Missing && view.State == live.Absent {
			d.step = stepApply
		}
		return d
	case en.Desired != desiredOf(m):
		d.step, d.changed = stepApply, true
		return d
	case j == InSync || j == Done:
		return d
	case j == Unclear || j == Unseen:
		d.step, d.until = stepVerify, p.verifyAt()
	default:
		d.step, d.until = stepApply, p.repairAt()
	}
	if now.Before(d.until) {
		d.step = stepDefer
	}
	return d
}
