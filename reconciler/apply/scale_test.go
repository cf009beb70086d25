// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-dev/lockstep/payload"
)

// pass applies all manifests side by side and returns the requests it cost.
func (r *rig) pass(ms []payload.Manifest, mode Mode) []string {
	r.t.Helper()
	began := time.Now()
	must(r.t, r.engine.Begin(r.t.Context(), ms, nil))
	var group errgroup.Group
	group.SetLimit(2 * DefaultConcurrency)
	for i := range ms {
		group.Go(func() error {
			_, err := r.engine.Apply(r.t.Context(), &ms[i], mode)
			return err
		})
	}
	must(r.t, group.Wait())
	must(r.t, r.engine.Flush(r.t.Context()))
	got := r.requests.take()
	r.t.Logf("%d objects, %d requests, %s", len(ms), len(got), time.Since(began).Round(time.Microsecond))
	return got
}

// The goals of the design in request counts; the times are in the log.
func TestManyObjectsSideBySide(t *testing.T) {
	r := newRig(t)
	var text strings.Builder
	docs := strings.Split(webSet, "---")
	for i := range 100 {
		for _, doc := range docs[:4] { // Each with a name of its own.
			doc = strings.NewReplacer("name: settings,", fmt.Sprintf("name: settings%d,", i), "name: web, namespace", fmt.Sprintf("name: web%d, namespace", i)).Replace(doc)
			text.WriteString("---" + doc)
		}
	}
	ms := r.manifests(text.String())
	if got := r.pass(ms, Updating); len(got) != len(ms) {
		t.Errorf("%d requests for %d new objects", len(got), len(ms))
	}
	r.seen(ms)
	if got := r.pass(ms, Reconciling); len(got) != 0 {
		t.Errorf("%d requests for an unchanged set: %.300q", len(got), got)
	}
	changed := r.manifests(strings.Replace(text.String(), `a: "1"`, `a: "2"`, 20))
	if got := r.pass(changed, Updating); len(got) != 20 {
		t.Errorf("%d requests for 20 changed objects", len(got))
	}
	r.restart()
	if got := r.pass(changed, Reconciling); len(got) != 0 {
		t.Errorf("%d requests after a restart: %.300q", len(got), got)
	}
}
