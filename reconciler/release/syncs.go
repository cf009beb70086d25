// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"

	"github.com/go-logr/logr"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// Values of the label result of lockstep_release_syncs_total.
const (
	syncComplete   = "complete"
	syncIncomplete = "incomplete"
)

// countSyncs returns a function that counts the ended syncs of a release.
func (r *runtimes) countSyncs(name string) func(complete bool) {
	log := r.log.WithValues("release", name)
	return func(complete bool) {
		result := syncIncomplete
		if complete {
			result = syncComplete
		}
		r.metrics.syncs.WithLabelValues(name, result).Inc()
		log.V(1).Info("sync ended", "result", result)
	}
}

// logManifests returns a function that logs a manifest's error whenever it changes.
// The status lists only some objects; the log has all. It isn't safe for concurrent
// use.
func logManifests(log logr.Logger) func(*payload.Manifest, *worker.UpdateError) {
	last := map[payload.ObjectID]string{}
	return func(m *payload.Manifest, err *worker.UpdateError) {
		before := last[m.ID]
		switch {
		case err == nil && before != "":
			delete(last, m.ID)
			log.Info("manifest recovered", "object", m.ID.String())
		case err == nil || errors.Is(err, context.Canceled):
		case before != err.Code+err.Error():
			last[m.ID] = err.Code + err.Error()
			log.Info("manifest failed", "object", m.ID.String(), "reason", err.Code, "message", err.Error(),
				"file", m.File, "line", m.Line)
		}
	}
}
