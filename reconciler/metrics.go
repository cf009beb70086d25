// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// releaseMetrics are the metrics of releases that the engine itself doesn't
// keep; those are in package apply, those of conditions in fluxcd's recorder.
type releaseMetrics struct {
	passes    *prometheus.CounterVec
	info      *prometheus.GaugeVec
	manifests *prometheus.GaugeVec
	errors    *prometheus.CounterVec
	verify    *prometheus.HistogramVec
	hosts     *prometheus.GaugeVec
}

func newReleaseMetrics() *releaseMetrics {
	return &releaseMetrics{
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_release_syncs_total", Help: "Passes over all manifests of a release that ended, by result: complete, incomplete.",
		}, []string{"release", "result"}),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_release_info", Help: "The version of a release in each of its roles: desired, accepted, applied.",
		}, []string{"release", "role", "version"}),
		manifests: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_release_manifests", Help: "Manifests of the accepted release by state: done (skipped ones included), skipped, failed, blocked (applied and waited for), total.",
		}, []string{"release", "state"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_release_payload_errors_total", Help: "Refusals of a desired release, by reason: of its signatures, its content, a precondition or the dry run.",
		}, []string{"release", "reason"}),
		verify: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "lockstep_release_verify_seconds",
			Help:    "Time of the verification of a desired release's signatures, with what it reads from the registry, by result: ok, error.",
			Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"release", "result"}),
		hosts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_nodeos_hosts", Help: "Hosts of a pool by state.",
		}, []string{"nodeos", "state"}),
	}
}

func (m *releaseMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.passes, m.info, m.manifests, m.errors, m.verify, m.hosts}
}

// release records where a release stands.
func (m *releaseMetrics) release(obj *v1alpha1.ClusterRelease, w *worker.SyncWorkerStatus) {
	m.info.DeletePartialMatch(prometheus.Labels{"release": obj.Name})
	for role, ref := range map[string]*v1alpha1.ReleaseRef{"desired": obj.Status.Desired, "accepted": obj.Status.Accepted, "applied": obj.Status.Applied} {
		if ref != nil {
			m.info.WithLabelValues(obj.Name, role, ref.Version).Set(1)
		}
	}
	for state, n := range map[string]int{"done": w.Done, "skipped": w.Skipped, "failed": w.Failed, "blocked": w.BlockingTotal - w.Failed, "total": w.Total} {
		m.manifests.WithLabelValues(obj.Name, state).Set(float64(n))
	}
}

// forget drops what is known of a release that is gone.
func (m *releaseMetrics) forget(name string) {
	match := prometheus.Labels{"release": name}
	m.passes.DeletePartialMatch(match)
	m.info.DeletePartialMatch(match)
	m.manifests.DeletePartialMatch(match)
	m.errors.DeletePartialMatch(match)
	m.verify.DeletePartialMatch(match)
}

// refused counts a refusal of a release.
func (m *releaseMetrics) refused(name, reason string) {
	m.errors.WithLabelValues(name, reason).Inc()
}

// verified records how long a verification took.
func (m *releaseMetrics) verified(name string, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.verify.WithLabelValues(name, result).Observe(took.Seconds())
}

// countedDryRun counts what the dry run of a builder refuses.
type countedDryRun struct {
	worker.ResourceBuilder
	refused func(reason string)
}

// DryRun implements worker.ResourceBuilder.
func (b countedDryRun) DryRun(ctx context.Context, target *payload.Payload) error {
	err := b.ResourceBuilder.DryRun(ctx, target)
	if err != nil && ctx.Err() == nil {
		b.refused(reasonOf(err, "DryRunRefused"))
	}
	return err
}

// pool records where a pool stands.
func (m *releaseMetrics) pool(obj *v1alpha1.NodeOS) {
	c := obj.Status.Counts
	for state, n := range map[string]int32{
		"total": c.Total, "updated": c.Updated, "staged": c.Staged, "in_flight": c.InFlight, "failed": c.Failed, "quarantined": c.Quarantined, "held": c.Held,
	} {
		m.hosts.WithLabelValues(obj.Name, state).Set(float64(n))
	}
}

// forgetPool drops what is known of a pool that is gone.
func (m *releaseMetrics) forgetPool(name string) {
	m.hosts.DeletePartialMatch(prometheus.Labels{"nodeos": name})
}
