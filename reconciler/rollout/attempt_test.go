// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"testing"

	"github.com/lockstep-dev/lockstep/reconciler/ledger"
)

func TestReturningToATargetIsANewAttempt(t *testing.T) {
	s := newScenario()
	targets := []string{"1.0.0", "1.1.0", "1.0.0", "1.1.0"}
	seen := map[string]string{}
	for i, version := range targets {
		s.in.Pool.Generation = int64(i + 1)
		s.in.Pool.Target = ledger.Image{Version: version, Digest: "sha256:" + version}
		first := Plan(s.in, s.now)
		s.in.Ledger = first.Ledger
		attempt := s.attempt("")
		if before, ok := seen[attempt]; ok {
			t.Errorf("the attempt of round %d (%s) equals that of an earlier round (%s): agents would not run it", i, version, before)
		}
		seen[attempt] = version
		s.in.Pool.Generation += 100 // changes that don't affect the target
		s.in.Ledger = Plan(s.in, s.now).Ledger
		if again := s.attempt(""); again != attempt {
			t.Errorf("a change that doesn't affect the target made a new attempt of %s", version)
		}
	}
}
