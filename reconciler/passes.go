// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"

	"github.com/go-logr/logr"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// The results of a pass, as the metric has them.
const (
	passLevel      = "complete"
	passIncomplete = "incomplete"
)

// tellPasses returns what counts the passes of a release.
func (r *releases) tellPasses(name string) func(level bool) {
	log := r.log.WithValues("release", name)
	return func(level bool) {
		result := passIncomplete
		if level {
			result = passLevel
		}
		r.gauges.passes.WithLabelValues(name, result).Inc()
		log.V(1).Info("a pass ended", "result", result)
	}
}

// tellEnds returns what logs why an object isn't level, each time that changes.
// A status has room for some objects only; the log has them all.
func tellEnds(log logr.Logger) func(*payload.Manifest, *worker.UpdateError) {
	told := map[payload.ObjectID]string{} // the worker calls one after the other
	return func(m *payload.Manifest, err *worker.UpdateError) {
		before := told[m.ID]
		switch {
		case err == nil && before != "":
			delete(told, m.ID)
			log.Info("the object is level after all", "object", m.ID.String())
		case err == nil || errors.Is(err, context.Canceled):
		case before != err.Code+err.Error():
			told[m.ID] = err.Code + err.Error()
			log.Info("the object isn't level", "object", m.ID.String(), "reason", err.Code, "message", err.Error(),
				"file", m.File, "line", m.Line)
		}
	}
}
