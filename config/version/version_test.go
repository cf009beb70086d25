// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package version

import (
	"strings"
	"testing"
)

func TestALowerVersionIsARollback(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		want     bool
	}{
		{"1.4.2", "1.4.1", true},
		{"1.10.0", "1.9.0", true},
		{"v1.36.3", "1.36.2", true},
		{"1.4.0", "1.4.0-rc.1", true},
		{"1.4.1", "1.4.1", false},
		{"1.4.1", "1.4.2", false},
		{"blue", "1.0.0", false},
		{"1.0.0", "green", false},
		{"", "1.0.0", false},
	} {
		if got := IsRollback(tc.from, tc.to); got != tc.want {
			t.Errorf("IsRollback(%q, %q) = %t, want %t", tc.from, tc.to, got, tc.want)
		}
	}
}

func TestParseIsBoundedAndTolerant(t *testing.T) {
	if _, err := Parse(strings.Repeat("1", MaxLength+1)); err == nil {
		t.Error("a version longer than the limit was parsed")
	}
	v, err := Parse("v1.36")
	if err != nil || v.String() != "1.36.0" {
		t.Errorf("Parse(v1.36) = %s, %v, want 1.36.0", v, err)
	}
}
