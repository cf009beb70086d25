// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package precondition

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-dev/lockstep/config/version"
)

func TestHopsAreCountedFromWhatIsAppliedAndWhatFailed(t *testing.T) {
	const none = -1
	for name, tc := range map[string]struct {
		current, applying, target string
		hop                       int
		blocked                   bool // an object reports Upgradeable=False
		want                      string
		message                   string
	}{
		"no limit":                                            {"1.2.0", "1.2.0", "1.9.0", none, false, "", ""},
		"no limit across a major version":                     {"1.2.0", "1.2.0", "3.0.0", none, false, "", ""},
		"within the limit":                                    {"1.2.0", "1.2.0", "1.4.0", 2, false, "", ""},
		"above the limit":                                     {"1.2.0", "1.2.0", "1.6.0", 2, false, GiantHop, "update from 1.2.0 to 1.6.0 not allowed: minor versions are skipped; update to 1.4 first"},
		"patches only, a patch":                               {"1.2.0", "1.2.0", "1.2.1", 0, false, "", ""},
		"patches only, a minor":                               {"1.2.0", "1.2.0", "1.3.0", 0, false, GiantHop, "the release allows updates from 1.3 only"},
		"a patch of the failing version":                      {"1.2.0", "1.3.0", "1.3.1", 1, false, "", ""},
		"a patch of a failing version after a waived hop":     {"1.1.0", "1.3.0", "1.3.1", 1, false, "", ""},
		"a patch of a failing major version":                  {"1.1.0", "2.0.0", "2.0.1", 1, false, "", ""},
		"a patch of a patch that failed too":                  {"1.1.0", "1.3.1", "1.3.2", 1, false, "", ""},
		"an earlier patch of the failing minor":               {"1.1.0", "1.3.2", "1.3.1", 1, false, "", ""},
		"the minor after the failing version":                 {"1.2.0", "1.3.0", "1.4.0", 1, false, GiantHop, "update from 1.2.0 to 1.4.0"},
		"the applied version again":                           {"1.2.0", "1.3.0", "1.2.0", 1, true, "", ""},
		"another minor with a blocker":                        {"1.2.0", "1.2.0", "1.3.0", 1, true, Upgradeable, "1.2.0 not upgradeable"},
		"a patch of the failing version with a blocker":       {"1.2.0", "1.3.0", "1.3.1", 1, true, "warn Upgradeable", ""},
		"the minor after the failing version with a blocker":  {"1.2.0", "1.3.0", "1.4.0", none, true, Upgradeable, ""},
		"forward again during a rollback":                     {"1.4.0", "1.3.0", "1.4.0", 1, false, "", ""},
		"the next minor during a rollback skips one":          {"1.4.0", "1.3.0", "1.5.0", 1, false, GiantHop, "update from 1.3.0 to 1.5.0"},
		"a first install that failed":                         {"", "1.3.0", "1.9.0", 1, true, "", ""},
		"a failing version that isn't one":                    {"1.2.0", "x", "1.4.0", 1, false, GiantHop, "from 1.2.0"},
		"a pre-release that failed, then its final version":   {"1.1.0", "1.3.0-rc.1", "1.3.0", 1, false, "", ""},
		"a minor number that would overflow":                  {"1.2.0", "1.2.0", "1.18446744073709551615.0", 2, false, GiantHop, ""},
		"from a minor number that would overflow to a patch":  {"1.18446744073709551615.0", "1.18446744073709551615.0", "1.18446744073709551615.1", 2, false, "", ""},
		"the same version again with a limit of patches":      {"1.2.0", "1.2.0", "1.2.0", 0, true, "", ""},
		"a patch of the current version with another failing": {"1.2.0", "1.3.0", "1.2.1", 1, true, "warn Upgradeable", ""},
		"a minor below the failing one, within the limit":     {"1.2.0", "1.4.0", "1.3.0", 1, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			facts := Facts{Target: release(t, tc.target), Current: tc.current, Applying: tc.applying, Completed: []string{tc.current}}
			if tc.hop != none {
				withHop(facts.Target, tc.hop)
			}
			if tc.blocked {
				facts.Blockers = []Blocker{{"etcd", "Degraded", "a member is down"}}
			}
			got, text := "", ""
			for _, v := range Evaluate(&facts) {
				if !v.Blocking {
					got += "warn "
				}
				got, text = got+v.Name, text+v.Message
			}
			if got != tc.want || !strings.Contains(text, tc.message) {
				t.Errorf("violations: %q %q, want %q %q", got, text, tc.want, tc.message)
			}
		})
	}
}

// The minimum of a fix is another requirement than the hop, so that it is compared
// with the version that completed.
func TestTheMinimumIsComparedWithTheCompletedVersion(t *testing.T) {
	facts := Facts{Target: withMinimum(release(t, "1.3.1"), "1.2.5"), Current: "1.2.0", Applying: "1.3.0"}
	got := Evaluate(&facts)
	if len(got) != 1 || got[0].Name != GiantHop || !strings.Contains(got[0].Message, "requires at least 1.2.5") {
		t.Errorf("violations: %v, want the minimum", got)
	}
}

func TestThePredecessorsOfAFixIncludeTheFailingVersion(t *testing.T) {
	facts := Facts{Target: withPrevious(release(t, "1.3.1"), "1.3.0"), Current: "1.2.0", Applying: "1.3.0"}
	if got := Evaluate(&facts); got != nil {
		t.Errorf("violations of a fix that lists the failing version: %v", got)
	}
}

// Whatever is applied and failing: another patch of the failing version is never
// refused for its hop, and a failing version permits nothing beyond its own minor
// version that its absence doesn't permit.
func TestAFailingVersionPermitsItsFixesOnly(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		draw := func(name string) string {
			return fmt.Sprintf("%d.%d.%d", rapid.IntRange(1, 2).Draw(r, name+" major"), rapid.IntRange(0, 5).Draw(r, name+" minor"), rapid.IntRange(0, 2).Draw(r, name+" patch"))
		}
		current, applying, target := draw("current"), draw("applying"), draw("target")
		facts := Facts{
			Target: withHop(release(t, target), rapid.IntRange(0, 3).Draw(r, "hop")), Current: current, Applying: applying,
			Blockers: []Blocker{{"etcd", "Degraded", "a member is down"}},
		}
		a, _ := version.Parse(applying)
		to, _ := version.Parse(target)
		blocked := Blocks(append(giantHop(&facts), upgradeable(&facts)...))
		if sameMinor(a, to) && applying != current {
			if blocked {
				t.Fatalf("a fix is refused: %s applied, %s failing, %s desired", current, applying, target)
			}
			return
		}
		facts.Applying = current
		if Blocks(append(giantHop(&facts), upgradeable(&facts)...)) && !blocked {
			t.Fatalf("a failing version permits a hop: %s applied, %s failing, %s desired", current, applying, target)
		}
	})
}
