// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-dev/lockstep/payload"
)

func TestThousandObjectsTiming(t *testing.T) {
	r := newRig(t)
	var text strings.Builder
	for i := range 250 {
		s := strings.ReplaceAll(webSet, "name: settings", fmt.Sprintf("name: settings%d", i))
		s = strings.ReplaceAll(s, "name: web, namespace", fmt.Sprintf("name: web%d, namespace", i))
		docs := strings.Split(s, "---")
		text.WriteString("---" + docs[0] + "---" + docs[1] + "---" + docs[2] + "---" + docs[3])
	}
	ms := r.manifests(text.String())
	pass := func(name string, mode Mode) {
		start := time.Now()
		must(t, r.engine.Begin(t.Context(), ms, nil))
		begin := time.Since(start)
		var g errgroup.Group
		g.SetLimit(16)
		for i := range ms {
			g.Go(func() error {
				_, err := r.engine.Apply(t.Context(), &ms[i], mode)
				r.mu.Lock()
				r.applied[ms[i].ID] = ms[i]
				r.mu.Unlock()
				return err
			})
		}
		must(t, g.Wait())
		applied := time.Since(start)
		must(t, r.engine.Flush(t.Context()))
		t.Logf("%s: begin %s apply %s flush %s requests %d", name, begin, applied, time.Since(start), len(r.requests.take()))
	}
	pass("first", Updating)
	r.seen(ms)
	time.Sleep(time.Second)
	pass("unchanged", Reconciling)
	pass("unchanged", Reconciling)
	r.restart()
	pass("restart", Reconciling)
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	t.Logf("heap %d MiB", m.HeapAlloc>>20)
	_ = payload.ObjectID{}
}
