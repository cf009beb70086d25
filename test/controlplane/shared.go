// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

// shared is the one control plane of a test binary. It is package state because
// its life is the process's own: TestMain ends it, or the kernel does.
var shared struct {
	once    sync.Once
	mu      sync.Mutex
	cluster *Cluster
	err     error
}

// reserve is what Shared leaves of a test binary's time for the tests.
const reserve = 30 * time.Second

// Shared returns the Light control plane that all tests of a binary use. The
// first call starts it, and compiles it where the cache doesn't hold it. Tests
// keep apart by namespaces and names of their own. The test fails if it can't
// be started.
func Shared(tb testing.TB) *Cluster {
	tb.Helper()
	shared.once.Do(func() {
		ctx := context.Background() // the start belongs to the binary, not to the test that comes first
		if d, ok := tb.(interface{ Deadline() (time.Time, bool) }); ok {
			if deadline, ok := d.Deadline(); ok {
				limited, cancel := context.WithDeadline(ctx, deadline.Add(-reserve))
				defer cancel()
				ctx = limited
			}
		}
		cluster, err := Start(ctx, Options{})
		shared.mu.Lock()
		defer shared.mu.Unlock()
		shared.cluster, shared.err = cluster, err
	})
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.err != nil {
		tb.Fatalf("start the shared control plane (compile it beforehand with: make controlplane): %v", shared.err)
	}
	return shared.cluster
}

// Main runs the tests and stops the shared control plane, if any test started
// it. Its result is for os.Exit:
//
//	func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }
//
// Without it the kernel ends the components with the test binary, and their
// directory is removed by the next start.
func Main(m *testing.M) int {
	code := m.Run()
	shared.mu.Lock()
	cluster := shared.cluster
	shared.mu.Unlock()
	if cluster == nil {
		return code
	}
	if err := cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		return max(code, 1)
	}
	return code
}
