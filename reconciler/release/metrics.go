// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// Metrics are the metrics of releases, besides those of the apply engine (package
// apply) and of conditions (package control). It is safe for concurrent use.
type Metrics struct {
	syncs     *prometheus.CounterVec
	info      *prometheus.GaugeVec
	manifests *prometheus.GaugeVec
	errors    *prometheus.CounterVec
	verify    *prometheus.HistogramVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_release_syncs_total", Help: "Ended syncs of all manifests of a release, by result: complete, incomplete.",
		}, []string{"release", "result"}),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_release_info", Help: "The version of a release in each of its roles: desired, accepted, applied.",
		}, []string{"release", "role", "version"}),
		manifests: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_release_manifests", Help: "Manifests of the accepted release by state: done (including skipped), skipped, failed, blocked (applied, not ready yet), total.",
		}, []string{"release", "state"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_release_payload_errors_total", Help: "Rejections of a desired release, by reason: of its signatures, content, preconditions or dry run.",
		}, []string{"release", "reason"}),
		verify: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "lockstep_release_verify_seconds",
			Help:    "Duration of the signature verification of a desired release, registry reads included, by result: ok, error.",
			Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"release", "result"}),
	}
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.syncs, m.info, m.manifests, m.errors, m.verify}
}

// Record sets the metrics of a release.
func (m *Metrics) Record(obj *v1alpha1.ClusterRelease, w *worker.SyncWorkerStatus) {
	m.info.DeletePartialMatch(prometheus.Labels{"release": obj.Name})
	for role, ref := range map[string]*v1alpha1.ReleaseRef{"desired": obj.Status.Desired, "accepted": obj.Status.Accepted, "applied": obj.Status.Applied} {
		if ref != nil {
			m.info.WithLabelValues(obj.Name, role, ref.Version).Set(1)
		}
	}
	if w.Actual.Version == "" {
		return // the accepted release isn't loaded yet: its manifests aren't counted
	}
	for state, n := range map[string]int{"done": w.Done, "skipped": w.Skipped, "failed": w.Failed, "blocked": w.BlockingTotal - w.Failed, "total": w.Total} {
		m.manifests.WithLabelValues(obj.Name, state).Set(float64(n))
	}
}

// delete deletes the metrics of a deleted release.
func (m *Metrics) delete(name string) {
	match := prometheus.Labels{"release": name}
	m.syncs.DeletePartialMatch(match)
	m.info.DeletePartialMatch(match)
	m.manifests.DeletePartialMatch(match)
	m.errors.DeletePartialMatch(match)
	m.verify.DeletePartialMatch(match)
}

// rejected counts a rejection of a release.
func (m *Metrics) rejected(name, reason string) {
	m.errors.WithLabelValues(name, reason).Inc()
}

// verified records the duration of a verification.
func (m *Metrics) verified(name string, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.verify.WithLabelValues(name, result).Observe(took.Seconds())
}

// countedDryRun counts the rejections of a builder's dry run.
type countedDryRun struct {
	worker.ResourceBuilder
	rejected func(reason string)
}

// DryRun implements worker.ResourceBuilder.
func (b countedDryRun) DryRun(ctx context.Context, target *payload.Payload) error {
	err := b.ResourceBuilder.DryRun(ctx, target)
	if err != nil && ctx.Err() == nil {
		b.rejected(control.ReasonOf(err, "DryRunRefused"))
	}
	return err
}
