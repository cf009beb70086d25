// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command peers applies the documents of a file with fluxcd/pkg/ssa, as
// kustomize-controller does, and says what that took. It is a module and a
// process of its own, so that what the peer needs isn't what we need, and its
// processor time is its own.
//
// It reads a file name a line from standard input and answers each with a line
// of JSON; the client stays warm in between, as in a controller.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/pkg/ssa"
	ssautils "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// answer says what one apply took.
type answer struct {
	WallSeconds float64 `json:"wallSeconds"`
	CPUSeconds  float64 `json:"cpuSeconds"`
	Entries     int     `json:"entries"`
	Changed     int     `json:"changed"`
	Error       string  `json:"error,omitempty"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: peers KUBECONFIG CONCURRENCY")
	}
	concurrency, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("concurrency: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return fmt.Errorf("read %s: %w", args[0], err)
	}
	config.QPS, config.Burst = -1, 0 // As Flux does when the server has priority and fairness.
	manager, err := newManager(config, concurrency)
	if err != nil {
		return err
	}
	lines, encoder := bufio.NewScanner(in), json.NewEncoder(out)
	for lines.Scan() {
		if err := encoder.Encode(apply(ctx, manager, lines.Text())); err != nil {
			return err
		}
	}
	return lines.Err()
}

// newManager makes what kustomize-controller makes.
func newManager(config *rest.Config, concurrency int) (*ssa.ResourceManager, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	var mapper meta.RESTMapper
	if mapper, err = apiutil.NewDynamicRESTMapper(config, httpClient); err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{HTTPClient: httpClient, Mapper: mapper})
	if err != nil {
		return nil, err
	}
	manager := ssa.NewResourceManager(c, polling.NewStatusPoller(c, mapper, polling.Options{}), ssa.Owner{Field: "bench-ssa", Group: "bench.example.com"})
	manager.SetConcurrency(concurrency)
	return manager, nil
}

func apply(ctx context.Context, manager *ssa.ResourceManager, name string) (a answer) {
	file, err := os.Open(name)
	if err != nil {
		return answer{Error: err.Error()}
	}
	objects, err := ssautils.ReadObjects(bufio.NewReader(file))
	_ = file.Close()
	if err != nil {
		return answer{Error: err.Error()}
	}
	began, used := time.Now(), cpu()
	changes, err := manager.ApplyAllStaged(ctx, objects, ssa.DefaultApplyOptions())
	a.WallSeconds, a.CPUSeconds = time.Since(began).Seconds(), (cpu() - used).Seconds()
	if err != nil {
		a.Error = err.Error()
		return a
	}
	a.Entries = len(changes.Entries)
	for _, entry := range changes.Entries {
		if entry.Action != ssa.UnchangedAction {
			a.Changed++
		}
	}
	return a
}

// cpu is the processor time of this process.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
