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

// sync applies all manifests concurrently and returns the requests.
func (env *testEnv) sync(ms []payload.Manifest, mode Mode) []string {
	env.t.Helper()
	began := time.Now()
	must(env.t, env.engine.Begin(env.t.Context(), ms, nil))
	var group errgroup.Group
	group.SetLimit(2 * DefaultConcurrency)
	for i := range ms {
		group.Go(func() error {
			_, err := env.engine.Apply(env.t.Context(), &ms[i], mode)
			return err
		})
	}
	must(env.t, group.Wait())
	must(env.t, env.engine.Flush(env.t.Context()))
	got := env.requests.take()
	env.t.Logf("%d objects, %d requests, %s", len(ms), len(got), time.Since(began).Round(time.Microsecond))
	return got
}

// The request counts are the goals of the design; the times are logged.
func TestManyObjectsAreAppliedConcurrently(t *testing.T) {
	env := newEnv(t)
	var text strings.Builder
	docs := strings.Split(webSet, "---")
	for i := range 100 {
		for _, doc := range docs[:4] { // With unique names.
			doc = strings.NewReplacer("name: settings,", fmt.Sprintf("name: settings%d,", i), "name: web, namespace", fmt.Sprintf("name: web%d, namespace", i)).Replace(doc)
			text.WriteString("---" + doc)
		}
	}
	ms := env.manifests(text.String())
	if got := env.sync(ms, Updating); len(got) != len(ms) {
		t.Errorf("%d requests for %d new objects", len(got), len(ms))
	}
	env.awaitEvents(ms)
	if got := env.sync(ms, Reconciling); len(got) != 0 {
		t.Errorf("%d requests for an unchanged set: %.300q", len(got), got)
	}
	changed := env.manifests(strings.Replace(text.String(), `a: "1"`, `a: "2"`, 20))
	if got := env.sync(changed, Updating); len(got) != 20 {
		t.Errorf("%d requests for 20 changed objects", len(got))
	}
	env.restart()
	if got := env.sync(changed, Reconciling); len(got) != 0 {
		t.Errorf("%d requests after a restart: %.300q", len(got), got)
	}
}
