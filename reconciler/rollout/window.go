// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // minimal images have no zoneinfo

	"github.com/robfig/cron/v3"
)

// MaxWindow is the longest duration of a window.
const MaxWindow = 7 * 24 * time.Hour

// horizon is how many days ahead openings are searched; there is a leap day
// within any eight years.
const horizon = 8*366 + 1

// Window is a recurring maintenance window. It opens when the local time of its
// zone matches the cron expression, and stays open for a duration of elapsed
// time.
//
// If a daylight-saving change skips the opening time, the window opens at the
// end of the gap; if the opening time repeats, it opens at the first.
type Window struct {
	cron     *cron.SpecSchedule
	duration time.Duration
	zone     *time.Location
}

// ParseWindow parses a window: a cron expression of five fields, its duration
// (at most MaxWindow) and an IANA time zone; an empty zone is UTC.
func ParseWindow(expr string, duration time.Duration, zone string) (Window, error) {
	if duration <= 0 || duration > MaxWindow {
		return Window{}, fmt.Errorf("duration %s: must be above 0 and at most %s", duration, MaxWindow)
	}
	if strings.Contains(expr, "=") || strings.HasPrefix(strings.TrimSpace(expr), "@") {
		return Window{}, fmt.Errorf("cron %q: must have five fields; set timeZone for the zone", expr)
	}
	schedule, err := cron.ParseStandard(expr)
	if err != nil {
		return Window{}, fmt.Errorf("cron %q: %w", expr, err)
	}
	spec, ok := schedule.(*cron.SpecSchedule)
	if !ok {
		return Window{}, fmt.Errorf("cron %q: must have five fields", expr)
	}
	if zone == "Local" {
		return Window{}, errors.New("time zone Local: must be an IANA name, such as Europe/Berlin")
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return Window{}, fmt.Errorf("time zone %q: %w", zone, err)
	}
	return Window{cron: spec, duration: duration, zone: loc}, nil
}

// closes returns when the window closes; false if it isn't open at now.
func (w Window) closes(now time.Time) (time.Time, bool) {
	var end time.Time
	for day := -int(w.duration/(24*time.Hour)) - 2; day <= 1; day++ {
		w.openings(now, day, func(at time.Time) bool {
			if !at.After(now) && at.Add(w.duration).After(now) && at.Add(w.duration).After(end) {
				end = at.Add(w.duration)
			}
			return true
		})
	}
	return end, !end.IsZero()
}

// opens returns the first opening after now; false if there is none.
func (w Window) opens(now time.Time) (time.Time, bool) {
	var first time.Time
	for day := -1; day <= horizon && first.IsZero(); day++ {
		w.openings(now, day, func(at time.Time) bool {
			if at.After(now) && (first.IsZero() || at.Before(first)) {
				first = at
			}
			return first.IsZero()
		})
	}
	return first, !first.IsZero()
}

// openings calls yield with each opening on the local day that is offset days
// from now's, in order, until it returns false.
func (w Window) openings(now time.Time, offset int, yield func(time.Time) bool) {
	y, m, d := now.In(w.zone).Date()
	day := time.Date(y, m, d+offset, 12, 0, 0, 0, time.UTC)
	if !w.matchesDay(day) {
		return
	}
	for hour := range 24 {
		if w.cron.Hour&(1<<uint(hour)) == 0 {
			continue
		}
		for minute := range 60 {
			if w.cron.Minute&(1<<uint(minute)) == 0 {
				continue
			}
			if !yield(w.instant(day, hour, minute)) {
				return
			}
		}
	}
}

// starBit is the bit that the cron library sets for a field that is "*".
const starBit = 1 << 63

// matchesDay follows cron: if both day fields are restricted, either matches.
func (w Window) matchesDay(day time.Time) bool {
	if w.cron.Month&(1<<uint(day.Month())) == 0 {
		return false
	}
	dom := w.cron.Dom&(1<<uint(day.Day())) != 0
	dow := w.cron.Dow&(1<<uint(day.Weekday())) != 0
	if w.cron.Dom&starBit != 0 || w.cron.Dow&starBit != 0 {
		return dom && dow
	}
	return dom || dow
}

// instant returns when the zone's local time is that time of day: the first of
// two such instants, or the end of the gap if there is none.
func (w Window) instant(day time.Time, hour, minute int) time.Time {
	utc := time.Date(day.Year(), day.Month(), day.Day(), hour, minute, 0, 0, time.UTC)
	_, before := utc.Add(-26 * time.Hour).In(w.zone).Zone()
	_, after := utc.Add(26 * time.Hour).In(w.zone).Zone()
	early := utc.Add(-time.Duration(max(before, after)) * time.Second)
	late := utc.Add(-time.Duration(min(before, after)) * time.Second)
	for _, at := range []time.Time{early, late} {
		if l := at.In(w.zone); l.Hour() == hour && l.Minute() == minute && l.Day() == day.Day() {
			return at
		}
	}
	start, _ := late.In(w.zone).ZoneBounds()
	return start
}

// openFor reports whether a window is open at now for at least need; if not,
// it returns when the next window that is long enough opens (zero if never).
func openFor(windows []Window, now time.Time, need time.Duration) (bool, time.Time) {
	if len(windows) == 0 {
		return true, time.Time{}
	}
	var next time.Time
	for _, w := range windows {
		if end, ok := w.closes(now); ok && !now.Add(need).After(end) {
			return true, time.Time{}
		}
		if w.duration < need {
			continue
		}
		if at, ok := w.opens(now); ok && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return false, next
}
