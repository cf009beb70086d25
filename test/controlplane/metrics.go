// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxMetrics bounds the answer of /metrics, in bytes; a busy server's has 2 MiB.
const maxMetrics = 64 << 20

// Request is a class of requests in the API server's metrics.
type Request struct {
	Verb        string // GET, LIST, WATCH, POST, PUT, PATCH, APPLY, DELETE, …
	Group       string
	Resource    string
	Subresource string
	Code        string // the HTTP status
	DryRun      string
}

// Counts are numbers of requests since the API server started.
type Counts map[Request]int

// Sum adds up the classes that match.
func (c Counts) Sum(match func(Request) bool) int {
	sum := 0
	for r, n := range c {
		if match(r) {
			sum += n
		}
	}
	return sum
}

// RequestCounts returns the number of requests that the API server answered
// (apiserver_request_total), so that a test can bound the cost of a step
// without a proxy.
func (c *Cluster) RequestCounts(ctx context.Context) (Counts, error) {
	families, err := c.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	counts := Counts{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		counts[Request{
			Verb: labels["verb"], Group: labels["group"], Resource: labels["resource"],
			Subresource: labels["subresource"], Code: labels["code"], DryRun: labels["dry_run"],
		}] += int(m.GetCounter().GetValue())
	}
	return counts, nil
}

// Metrics returns all metrics of the API server.
func (c *Cluster) Metrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+"/metrics", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("make the request for metrics: %w", err)
	}
	response, err := c.probe.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read the API server's metrics: HTTP %d", response.StatusCode)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(response.Body, maxMetrics))
	if err != nil {
		return nil, fmt.Errorf("parse the API server's metrics: %w", err)
	}
	return families, nil
}

// CPU returns the CPU time, user and system, of the API server and etcd since
// their last start.
func (c *Cluster) CPU() (time.Duration, error) {
	var sum time.Duration
	for _, component := range []string{etcd, apiServer} {
		p, err := c.process(component)
		if err != nil {
			return 0, err
		}
		used, err := p.cpu()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}
