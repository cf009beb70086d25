// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// Metrics are the metrics of pools. It is safe for concurrent use.
type Metrics struct {
	hosts *prometheus.GaugeVec
}

// NewMetrics returns unregistered metrics.
func NewMetrics() *Metrics {
	return &Metrics{hosts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "lockstep_nodeos_hosts", Help: "Hosts of a pool by state.",
	}, []string{"nodeos", "state"})}
}

// Collectors returns the metrics to register.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.hosts} }

// Record sets the metrics of a pool.
func (m *Metrics) Record(obj *v1alpha1.NodeOS) {
	c := obj.Status.Counts
	for state, n := range map[string]int32{
		"total": c.Total, "updated": c.Updated, "staged": c.Staged, "in_flight": c.InFlight, "failed": c.Failed, "quarantined": c.Quarantined, "held": c.Held,
	} {
		m.hosts.WithLabelValues(obj.Name, state).Set(float64(n))
	}
}

// delete deletes the metrics of a deleted pool.
func (m *Metrics) delete(name string) {
	m.hosts.DeletePartialMatch(prometheus.Labels{"nodeos": name})
}
