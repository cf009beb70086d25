// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func mustWindow(t *testing.T, expr string, d time.Duration, zone string) Window {
	t.Helper()
	w, err := ParseWindow(expr, d, zone)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func at(t *testing.T, zone, local string) time.Time {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	out, err := time.ParseInLocation("2006-01-02 15:04", local, loc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWindowIsOpen(t *testing.T) {
	t.Parallel()
	const berlin = "Europe/Berlin"
	for name, tc := range map[string]struct {
		cron     string
		duration time.Duration
		zone     string
		now      string
		need     time.Duration
		open     bool
		next     string
	}{
		"at its opening":                                     {"0 22 * * 6", 6 * time.Hour, berlin, "2026-11-28 22:00", 0, true, ""},
		"past midnight, on the day after":                    {"0 22 * * 6", 6 * time.Hour, berlin, "2026-11-29 01:00", 0, true, ""},
		"not on its day before it opens":                     {"0 22 * * 6", 6 * time.Hour, berlin, "2026-11-28 01:00", 0, false, "2026-11-28 22:00"},
		"not at its end":                                     {"0 22 * * 6", 6 * time.Hour, berlin, "2026-11-29 04:00", time.Second, false, "2026-12-05 22:00"},
		"not if the attempt does not fit":                    {"0 22 * * 6", 6 * time.Hour, berlin, "2026-11-29 03:30", time.Hour, false, "2026-12-05 22:00"},
		"if the attempt fits exactly":                        {"0 22 * * 6", 6 * time.Hour, berlin, "2026-11-29 03:00", time.Hour, true, ""},
		"never if it is shorter than an attempt":             {"0 22 * * 6", time.Hour, berlin, "2026-11-28 22:00", 2 * time.Hour, false, ""},
		"for six elapsed hours when clocks go forward":       {"0 22 * * 6", 6 * time.Hour, berlin, "2026-03-29 04:59", 0, true, ""},
		"not after six elapsed hours when clocks go forward": {"0 22 * * 6", 6 * time.Hour, berlin, "2026-03-29 05:00", time.Second, false, "2026-04-04 22:00"},
		"for six elapsed hours when clocks go back":          {"0 22 * * 6", 6 * time.Hour, berlin, "2026-10-25 02:59", 0, true, ""},
		"not after six elapsed hours when clocks go back":    {"0 22 * * 6", 6 * time.Hour, berlin, "2026-10-25 03:00", time.Second, false, "2026-10-31 22:00"},
		"at the end of the gap that skips its opening":       {"30 2 * * *", time.Hour, berlin, "2026-03-29 03:00", 30 * time.Minute, true, ""},
		"in UTC without a zone":                              {"0 2 * * *", time.Hour, "", "2026-11-30 02:30", 0, true, ""},
		"if either day field matches":                        {"0 2 1 * 1", time.Hour, "", "2026-11-30 02:30", 0, true, ""},
		"in a half-hour zone":                                {"0 2 * * *", time.Hour, "Asia/Kolkata", "2026-11-30 02:30", 0, true, ""},
		"at the end of a day that a zone skipped":            {"0 12 30 12 *", time.Hour, "Pacific/Apia", "2011-12-29 12:00", 0, false, "2011-12-31 00:00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone := cmp.Or(tc.zone, "UTC")
			w := mustWindow(t, tc.cron, tc.duration, tc.zone)
			open, next := openFor([]Window{w}, at(t, zone, tc.now), tc.need)
			if open != tc.open {
				t.Errorf("open = %v, want %v", open, tc.open)
			}
			want := time.Time{}
			if tc.next != "" {
				want = at(t, zone, tc.next)
			}
			if !next.Equal(want) {
				t.Errorf("next opening %s, want %s", next, want)
			}
		})
	}
}

func TestWindowOpensOnceWhenItsTimeRepeats(t *testing.T) {
	t.Parallel()
	w := mustWindow(t, "30 2 * * *", 30*time.Minute, "Europe/Berlin")
	first := time.Date(2026, 10, 25, 0, 30, 0, 0, time.UTC) // 02:30 summer time
	if _, ok := w.closes(first); !ok {
		t.Error("closed at the first 02:30")
	}
	if _, ok := w.closes(first.Add(time.Hour)); ok {
		t.Error("open again at the second 02:30")
	}
}

func TestInvalidWindowsAreRejected(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cron     string
		duration time.Duration
		zone     string
	}{
		"an unknown zone":               {"0 22 * * 6", time.Hour, "Europe/Atlantis"},
		"the local zone":                {"0 22 * * 6", time.Hour, "Local"},
		"a zone in the cron expression": {"CRON_TZ=UTC 0 22 * * 6", time.Hour, ""},
		"a descriptor":                  {"@daily", time.Hour, ""},
		"six fields":                    {"0 0 22 * * 6", time.Hour, ""},
		"no duration":                   {"0 22 * * 6", 0, ""},
		"a duration of over a week":     {"0 22 * * 6", 8 * 24 * time.Hour, ""},
		"an invalid minute":             {"60 22 * * 6", time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := ParseWindow(tc.cron, tc.duration, tc.zone); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// TestWindowIsOpenAtItsNextOpening checks that a window is open at the time that
// opens returns, in any zone and on any day.
func TestWindowIsOpenAtItsNextOpening(t *testing.T) {
	t.Parallel()
	zones := []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Asia/Kathmandu", "Pacific/Apia", "Africa/Casablanca"}
	rapid.Check(t, func(t *rapid.T) {
		cron := rapid.SampledFrom([]string{"0 0 * * *", "30 2 * * *", "15 3 * * 0", "0 23 1 * *", "59 23 * * 1-5", "0 0 29 2 *"}).Draw(t, "cron")
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		w, err := ParseWindow(cron, time.Duration(rapid.IntRange(1, 20).Draw(t, "hours"))*time.Hour, zone)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(rapid.Int64Range(1_000_000_000, 2_000_000_000).Draw(t, "now"), 0)
		next, ok := w.opens(now)
		if !ok {
			t.Fatalf("%s (%s) never opens after %s", cron, zone, now)
		}
		if !next.After(now) {
			t.Fatalf("%s (%s) opens at %s, not after %s", cron, zone, next, now)
		}
		end, open := w.closes(next)
		if !open || end.Before(next.Add(w.duration)) {
			t.Fatalf("%s (%s) must be open at %s; open=%v until %s", cron, zone, next, open, end)
		}
	})
}
