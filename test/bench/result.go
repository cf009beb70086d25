// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// result is one line of the table.
type result struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Peer has the peers' values, or the origin of a figure.
	Peer string `json:"peer,omitempty"`
	// Goal is empty for rows without a goal; Met is null then.
	Goal string `json:"goal,omitempty"`
	Met  *bool  `json:"met"`
}

// shown is a line without a goal.
func shown(name string, value float64, unit, peer string) result {
	return result{Name: name, Value: value, Unit: unit, Peer: peer}
}

// atMost sets a goal with an upper limit.
func (r result) atMost(limit float64) result {
	met := r.Value <= limit
	r.Goal, r.Met = "≤ "+number(limit), &met
	return r
}

// atLeast sets a goal with a lower limit.
func (r result) atLeast(limit float64) result {
	met := r.Value >= limit
	r.Goal, r.Met = "≥ "+number(limit), &met
	return r
}

// number writes three significant digits, and whole numbers whole.
func number(v float64) string {
	if v == math.Trunc(v) || math.Abs(v) >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(v)))))
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// verdict is the result of a row in the table.
func (r result) verdict() string {
	switch {
	case r.Met == nil:
		return ""
	case *r.Met:
		return "met"
	default:
		return "MISSED"
	}
}

// writeTable writes the rows as a Markdown table.
func writeTable(w io.Writer, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| row\t| value\t| goal\t| \t| compared with\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|")
	for _, r := range results {
		fmt.Fprintf(t, "| %s\t| %s %s\t| %s\t| %s\t| %s\t|\n", r.Name, number(r.Value), r.Unit, r.Goal, r.verdict(), r.Peer)
	}
	return t.Flush()
}

// writeJSON writes the rows as JSON.
func writeJSON(path string, results []result) error {
	raw, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("directory of the results: %w", err)
	}
	if err := os.WriteFile(path, append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// quantile returns the value below which the share q of the values lies, by
// the nearest rank; 0 for no values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// median is the middle value, or the mean of the two.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// ratios divides round by round, because the measurements of a round share its
// noise.
func ratios(over, under []float64) []float64 {
	out := make([]float64, 0, len(over))
	for i, d := range under {
		if i < len(over) && d > 0 {
			out = append(out, over[i]/d)
		}
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
