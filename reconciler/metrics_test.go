// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestThePageListsEachMetricWithItsLabels(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		named[name] = true
		have, ok := registered(t)[name]
		if !ok {
			t.Errorf("unknown metric %s", name)
		}
		var want []string
		for l := range strings.SplitSeq(cells[2], ",") {
			if l = strings.Trim(l, " `"); l != "–" {
				want = append(want, l)
			}
		}
		if !slices.Equal(want, have) {
			t.Errorf("%s has the labels %v, the page has %v", name, have, want)
		}
	}
	for name := range registered(t) {
		if strings.HasPrefix(name, "lockstep_") && !named[name] {
			t.Errorf("the page doesn't list %s", name)
		}
	}
}
