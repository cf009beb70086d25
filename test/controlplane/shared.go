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

// shared is the control plane of a test binary. It is package state because it
// has the lifetime of the process: TestMain or the kernel ends it.
var shared struct {
	once    sync.Once
	mu      sync.Mutex
	cluster *Cluster
	err     error
}

// reserve is the part of a test binary's time that Shared leaves for the
// tests.
const reserve = 30 * time.Second

// Shared returns the Light control plane for all tests of a binary. The first
// call starts it, and compiles it if it isn't cached. Tests use separate
// namespaces and names. The test fails if it can't be started.
func Shared(tb testing.TB) *Cluster {
	tb.Helper()
	shared.once.Do(func() {
		ctx := context.Background() // the start belongs to the binary, not to its first test
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

// Main runs the tests and stops the shared control plane if a test started it.
// Its result is for os.Exit:
//
//	func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }
//
// Without it, the kernel ends the components with the test binary, and the
// next start removes their directory.
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
