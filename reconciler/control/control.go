// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/runtime/events"
	"github.com/fluxcd/pkg/runtime/metrics"
	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
)

// Base is what every controller uses; controllers embed it. All fields are
// required. It is safe for concurrent use.
type Base struct {
	// Client reads declared objects and Nodes from the cache and writes to the
	// API server.
	Client client.Client
	// Reader reads from the API server, where the cache may be outdated.
	Reader client.Reader
	// Store is the accepted state.
	Store *state.Store
	// Events records Kubernetes events, Metrics the conditions of objects.
	Events  events.Recorder
	Metrics *metrics.Recorder
	// Log is the logger of the process.
	Log logr.Logger
	// Now is the clock.
	Now func() time.Time
	// Ready is closed once the leader has loaded the Store.
	Ready <-chan struct{}
	// Fatal ends the process with an error.
	Fatal func(error)
}

// Validate returns an error that names a missing field.
func (b *Base) Validate() error {
	for name, missing := range map[string]bool{
		"Client": b.Client == nil, "Reader": b.Reader == nil, "Store": b.Store == nil, "Events": b.Events == nil,
		"Metrics": b.Metrics == nil, "Now": b.Now == nil, "Ready": b.Ready == nil, "Fatal": b.Fatal == nil,
	} {
		if missing {
			return fmt.Errorf("%s is required", name)
		}
	}
	return nil
}

// WaitReady waits until the Store is loaded.
func (b *Base) WaitReady(ctx context.Context) error {
	select {
	case <-b.Ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// HeldBy returns why a user holds the object: the annotation lockstep.dev/paused
// or spec.suspend. It is empty for an object that isn't held. Objects from Git and
// from payloads are treated alike.
func HeldBy(obj client.Object, suspended bool) status.HeldBy {
	if why, ok := obj.GetAnnotations()[v1alpha1.AnnotationPaused]; ok {
		return status.HeldBy{Reason: status.ReasonPaused, Message: "paused: " + sanitize.Line(why)}
	}
	if suspended {
		return status.HeldBy{Reason: status.ReasonSuspended, Message: "spec.suspend is set"}
	}
	return status.HeldBy{}
}

// LogError logs an error with its reason; it ignores nil and canceled contexts.
func LogError(log logr.Logger, err error, message string, keysAndValues ...any) {
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Error(err, message, append(keysAndValues, "reason", ReasonOf(err, "Error"))...)
	}
}
