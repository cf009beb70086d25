// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	rounds int
	// idle is the duration of the row idle.
	idle time.Duration
	// bin is the directory of the built programs, "" before the build.
	bin string
	// dir is a temporary directory.
	dir string
	log func(format string, args ...any)
}

// fewRounds is enough for rows with many samples per round, or without a goal.
const fewRounds = 3

// row measures something and returns lines of the table.
type row struct {
	name, about string
	run         func(context.Context, *bench) ([]result, error)
}

// rows are all rows in the table's order.
func rows() []row {
	return []row{
		{"apply", "1,000 objects: first, unchanged, after a restart; beside the peers", applyRows},
		{"release", "862 tasks of a realistic release, run level by run level", releaseRows},
		{"repair", "an edit by another manager is repaired, over 20 kinds", repairRows},
		{"worker", "the same with the whole reconciler", workerRows},
		{"commit", "the whole reconciler: a commit to applied, of 1,000 objects", commitRows},
		{"idle", "the whole reconciler with 862 objects at rest", idleRows},
		{"growth", "time per object from 100 to 5,000; memory at 1,000 and 5,000", growthRows},
		{"payload", "load and graph of a real payload", payloadRows},
		{"graph", "graph of 20,000 tasks", graphRows},
		{"plan", "rollout plan over 5,000 hosts", planRows},
	}
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	var names []string
	for _, r := range rows() {
		names = append(names, r.name)
	}
	rounds := flags.Int("rounds", 5, "number of rounds for noisy rows")
	chosen := flags.String("rows", strings.Join(names, ","), "rows to measure, comma-separated")
	idle := flags.Duration("idle", idleTime, "duration of the row idle; a shorter one has no goal")
	file := flags.String("out", "bin/bench.json", "file for the results")
	child := flags.String("child", "", "internal: measure the memory of a fresh process")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *child != "" {
		return runChild(ctx, *child, flags.Args(), out)
	}
	wanted := strings.Split(*chosen, ",")
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			return fmt.Errorf("unknown row %q: want some of %s", name, strings.Join(names, ", "))
		}
	}
	dir, err := os.MkdirTemp("", "lockstep-bench-")
	if err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	began := time.Now()
	b := &bench{rounds: max(*rounds, 1), idle: *idle, dir: dir, log: func(format string, args ...any) {
		fmt.Fprintf(progress, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}}
	results, err := b.measure(ctx, wanted)
	if err != nil {
		return err
	}
	if err := writeTable(out, results); err != nil {
		return err
	}
	return writeJSON(*file, results)
}

func (b *bench) measure(ctx context.Context, wanted []string) ([]result, error) {
	var results []result
	for _, r := range rows() {
		if !slices.Contains(wanted, r.name) {
			continue
		}
		b.log("%s: %s", r.name, r.about)
		lines, err := r.run(ctx, b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		results = append(results, lines...)
	}
	return results, nil
}

// onPlane runs work with its own control plane.
func (b *bench) onPlane(ctx context.Context, work func(*plane) error) (err error) {
	p, err := newPlane(ctx, b.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	if err := p.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ownNamespace+"}\n")); err != nil {
		return err
	}
	return work(p)
}

func hasKubectl() bool {
	_, err := exec.LookPath("kubectl")
	return err == nil
}
