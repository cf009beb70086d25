// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agent"
	"github.com/lockstep-dev/lockstep/nodeos/config"
	"github.com/lockstep-dev/lockstep/nodeos/events"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/nodeos/platform"
	"github.com/lockstep-dev/lockstep/nodeos/resource"
	"github.com/lockstep-dev/lockstep/nodeos/runner"
	"github.com/lockstep-dev/lockstep/nodeos/tasks"
	"github.com/lockstep-dev/lockstep/payload/image"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// machineConfig are the dependencies of newMachineParts.
type machineConfig struct {
	hostID  string
	trusted *agent.TrustStore
	logging nodeos.LoggingManager
	log     *zap.Logger
	now     func() time.Time
}

// machineParts are the controller of a host and its parts.
type machineParts struct {
	controller *runner.Controller
	events     *events.Ring
	journal    *runner.Journal
	registry   *registry.Client
}

func (m *machineParts) close() error {
	m.registry.Close()
	return m.journal.Close()
}

// newMachineParts creates the controller with its machine, tasks, journal and events.
func newMachineParts(ctx context.Context, cfg agentConfig, n machineConfig) (_ *machineParts, err error) {
	host, err := sim.Open(sim.Config{Dir: cfg.sim.dir, PowerCut: func() { os.Exit(sim.ExitPowerLoss) }})
	if err != nil {
		return nil, fmt.Errorf("open the machine: %w", err)
	}
	images, client, err := newImages(cfg, n)
	if err != nil {
		return nil, err
	}
	m := &machineParts{registry: client}
	defer func() {
		if err != nil {
			client.Close()
		}
	}()
	if m.journal, err = runner.OpenJournal(cfg.stateDir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.journal.Close())
		}
	}()
	if m.events, err = newEvents(ctx, host, m.journal, n.now); err != nil {
		return nil, err
	}
	surroundings, err := platform.New(cfg.platform, platform.Config{Dir: cfg.platformDir, Hostname: os.Hostname, Addresses: net.InterfaceAddrs})
	if err != nil {
		return nil, err
	}
	registered, err := tasks.All(tasks.Config{Host: host, Images: images, Platform: surroundings})
	if err != nil {
		return nil, err
	}
	resources := resource.NewRuntime(resource.NewStore(), n.log)
	if err := resources.Register(resource.NewStatusController(m.events)); err != nil {
		return nil, err
	}
	manager, err := config.Open(filepath.Join(cfg.stateDir, "machine.yaml"), resources.SetConfig)
	if err != nil {
		return nil, err
	}
	state := runner.NewMachine(manager)
	live, err := runner.NewRuntime(runner.RuntimeConfig{
		Config: manager, Platform: surroundings, Machine: state, Journal: m.journal, Events: m.events, Logging: n.logging,
		Resources: resources, NodeName: nodeName(ctx, cfg, surroundings, n.hostID),
	})
	if err != nil {
		return nil, err
	}
	m.controller, err = runner.New(runner.Config{
		HostID: n.hostID, Host: host, Tasks: registered, Journal: m.journal, Runtime: live, Machine: state, Resources: resources,
		Policy: runner.Policy{ClusterUID: cfg.clusterUID, RestartInterval: cfg.restartInterval}, Now: n.now, Log: n.log,
	})
	return m, err
}

// newEvents returns the event ring of this agent start, numbered after the earlier
// starts in the same boot.
func newEvents(ctx context.Context, host nodeos.Inspector, journal *runner.Journal, now func() time.Time) (*events.Ring, error) {
	inventory, err := host.Inspect(ctx)
	if err != nil {
		return nil, fmt.Errorf("inspect the machine: %w", err)
	}
	return events.New(events.Config{BootID: inventory.BootID, First: events.FirstOf(journal.StartIn(inventory.BootID)), Now: now})
}

// newImages creates the image source. It verifies every image under this host's own
// trust document, independently of the reconciler.
func newImages(cfg agentConfig, n machineConfig) (*signedImages, *registry.Client, error) {
	known, err := registry.LoadConfig(cfg.registries)
	if err != nil {
		return nil, nil, err
	}
	via, err := cfg.outbound.Load()
	if err != nil {
		return nil, nil, err
	}
	client, err := registry.New(known, registry.Options{
		Outbound:      via,
		AllowLoopback: cfg.insecure.loopback, AllowPlainHTTP: cfg.insecure.plainHTTP, Now: n.now, UserAgent: "lockstep-agent/" + version,
	})
	if err != nil {
		return nil, nil, err
	}
	verifier, err := verify.New(verify.Config{
		Registry: client, Now: n.now,
		Policy: func() *trust.Document {
			accepted, ok := n.trusted.Current()
			if !ok {
				return nil
			}
			return accepted.Document
		},
	})
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return &signedImages{verifier: verifier, fetcher: image.New(client, image.Limits{}), dir: filepath.Join(cfg.stateDir, "images")}, client, nil
}

// nodeName returns the name from the flag, else the platform's host name, else the
// host id.
func nodeName(ctx context.Context, cfg agentConfig, p nodeos.PlatformData, hostID string) string {
	if cfg.nodeName != "" {
		return cfg.nodeName
	}
	if name, err := p.Hostname(ctx); err == nil && name != "" {
		return name
	}
	return hostID
}

// builtAt returns the commit time of the program's sources; zero if unknown.
func builtAt() time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return time.Time{}
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.time" {
			at, err := time.Parse(time.RFC3339, setting.Value)
			if err == nil {
				return at
			}
		}
	}
	return time.Time{}
}

// clock returns the current time, but at least the build time: a host with an empty
// clock battery must not accept expired keys.
func clock(wall func() time.Time, built time.Time) func() time.Time {
	return func() time.Time {
		if now := wall(); now.After(built) {
			return now
		}
		return built
	}
}
