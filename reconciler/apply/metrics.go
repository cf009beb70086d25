// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics has the collectors of the apply engines. A nil *Metrics counts nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  prometheus.Histogram
	repairs  prometheus.Counter
	yields   prometheus.Counter
}

// NewMetrics returns new collectors; register those of Collectors.
func NewMetrics() *Metrics {
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_release_apply_requests_total",
			Help: "Requests to the API server for applies and prunes, by verb and result.",
		}, []string{"verb", "result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "lockstep_release_apply_seconds",
			Help:    "Duration of the apply of one object, including those without a request.",
			Buckets: []float64{.0001, .001, .005, .01, .025, .05, .1, .25, 1, 5, 30},
		}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_release_drift_repairs_total",
			Help: "Objects that were changed or deleted by others and repaired.",
		}),
		yields: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_release_fields_yielded_total",
			Help: "Fields that were yielded to another controller.",
		}),
	}
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.seconds, m.repairs, m.yields}
}

func (m *Metrics) request(verb, result string) {
	if m != nil {
		m.requests.WithLabelValues(verb, result).Inc()
	}
}

func (m *Metrics) took(d time.Duration) {
	if m != nil {
		m.seconds.Observe(d.Seconds())
	}
}

func (m *Metrics) repaired() {
	if m != nil {
		m.repairs.Inc()
	}
}

func (m *Metrics) yielded(n int) {
	if m != nil {
		m.yields.Add(float64(n))
	}
}

// outcome returns the result label of a request.
func outcome(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}
