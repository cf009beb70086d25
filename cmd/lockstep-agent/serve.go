// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/lockstep-dev/lockstep/config/backoff"
	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agent"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/nodeos/logs"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/nodeos/runner"
)

// drainGrace is the time that calls have to finish when the machine goes down.
const drainGrace = 2 * time.Second

// serve runs the agent for one boot until ctx ends, or returns a RebootError when an
// operation takes the machine down.
func serve(ctx context.Context, cfg agentConfig, stderr io.Writer) (err error) {
	now := clock(time.Now, builtAt())
	files := mtls.InDir(cfg.pkiDir)
	if cfg.untrustedCA != "" {
		files.UntrustedCAs = []string{cfg.untrustedCA}
	}
	identity, err := mtls.Open(files, now)
	if err != nil {
		return err
	}
	own, err := mtls.HostOf(identity.Leaf())
	if err != nil {
		return fmt.Errorf("certificate in %s: %w", cfg.pkiDir, err)
	}
	if err := keepHostID(cfg.stateDir, own.HostID); err != nil {
		return err
	}
	logging, err := logs.NewManager(ctx, logs.Config{Now: now})
	if err != nil {
		return fmt.Errorf("create the logs: %w", err)
	}
	defer func() { err = errors.Join(err, logging.Close()) }()
	log, err := withServiceLog(cfg.logLevel, stderr, logging)
	if err != nil {
		return err
	}
	log = log.With(zap.String("host", own.HostID))
	for _, option := range cfg.insecure.enabled() {
		log.Warn("insecure option enabled", zap.String("option", option))
	}
	trusted, err := openTrust(cfg, now)
	if err != nil {
		return err
	}
	machine, err := newMachineParts(ctx, cfg, machineConfig{hostID: own.HostID, trusted: trusted, logging: logging, log: log, now: now})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.close()) }()
	server, err := agent.New(agent.Config{
		Identity: identity, ClusterUID: cfg.clusterUID, Version: version, Controller: machine.controller,
		Events: machine.events, Logs: logging, Trust: trusted, Now: now, Log: log,
	})
	if err != nil {
		return err
	}
	return runParts(ctx, cfg, parts{identity: identity, controller: machine.controller, server: server, log: log})
}

// parts are the running parts of the agent.
type parts struct {
	identity   *mtls.Store
	controller *runner.Controller
	server     *agent.Server
	log        *zap.Logger
}

// runParts runs the parts until one ends; a machine that goes down ends all.
func runParts(ctx context.Context, cfg agentConfig, p parts) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.controller.Serve(ctx) })
	group.Go(func() error { return p.controller.V1Alpha2().Run(ctx, nodeos.NewDrainer()) })
	group.Go(func() error {
		if err := p.controller.Boot(ctx); err != nil && ctx.Err() == nil {
			p.log.Error("cannot start the boot sequence", zap.Error(err))
		}
		return nil
	})
	group.Go(func() error {
		return p.identity.Run(ctx, func(err error) {
			if err != nil {
				p.log.Error("cannot reload the certificate; keeping the previous one", zap.Error(err))
				return
			}
			p.log.Info("certificate reloaded", zap.Time("notAfter", p.identity.NotAfter()))
		})
	})
	group.Go(func() error { return listen(ctx, cfg, p) })
	group.Go(func() error {
		warnBeforeExpiry(ctx, p)
		return nil
	})
	return group.Wait()
}

// warnEvery is the interval between checks of the certificate's expiry.
const warnEvery = 6 * time.Hour

// warnBeforeExpiry logs a warning once two thirds of the certificate's lifetime have
// passed: an expired certificate disconnects the host.
func warnBeforeExpiry(ctx context.Context, p parts) {
	for ctx.Err() == nil {
		if p.identity.RenewalDue() {
			p.log.Warn("certificate expires soon; renew it with lockstep pki issue host", zap.Time("notAfter", p.identity.NotAfter()))
		}
		_ = backoff.Wait(ctx, warnEvery) // the loop checks ctx
	}
}

// listen serves callers, unless a fault of the simulated machine disables the
// network.
func listen(ctx context.Context, cfg agentConfig, p parts) error {
	machine, err := sim.Inspect(cfg.sim.dir)
	if err != nil {
		return err
	}
	if machine.NoNetwork {
		p.log.Warn("no network: injected fault")
		<-ctx.Done()
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.listen)
	if err != nil {
		return fmt.Errorf("listen at %s: %w", cfg.listen, err)
	}
	p.log.Info("serving", zap.Stringer("address", listener.Addr()), zap.String("boot", machine.BootID),
		zap.String("os", machine.Document.Version), zap.String("version", version), zap.Time("certificateExpires", p.identity.NotAfter()))
	return p.server.Serve(ctx, listener, drainGrace)
}

// withServiceLog returns a logger that writes to stderr and to the host's log of the
// service "agent".
func withServiceLog(level string, stderr io.Writer, logging nodeos.LoggingManager) (*zap.Logger, error) {
	writer, err := logging.ServiceLog("agent").Writer()
	if err != nil {
		return nil, fmt.Errorf("create the agent's log: %w", err)
	}
	return newLogger(level, io.MultiWriter(stderr, writer))
}

// openTrust opens the host's trust document and pins the first one.
func openTrust(cfg agentConfig, now func() time.Time) (*agent.TrustStore, error) {
	trusted, err := agent.OpenTrustStore(filepath.Join(cfg.stateDir, "trust"), now)
	if err != nil {
		return nil, err
	}
	if cfg.trustPolicy == "" {
		return trusted, nil
	}
	if _, ok := trusted.Current(); ok {
		return trusted, nil
	}
	envelope, err := os.ReadFile(cfg.trustPolicy)
	if err != nil {
		return nil, fmt.Errorf("read the first trust policy: %w", err)
	}
	if err := trusted.Pin(envelope, cfg.trustDigest); err != nil {
		return nil, fmt.Errorf("pin the first trust policy %s: %w", cfg.trustPolicy, err)
	}
	return trusted, nil
}

// maxHostID limits the file of the host id, in bytes.
const maxHostID = 1 << 10

// keepHostID stores the host id at the first start. A different id later means that
// certificates were mixed up or a disk was cloned.
func keepHostID(stateDir, hostID string) error {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("create the state directory: %w", err)
	}
	file := filepath.Join(stateDir, "host-id")
	data, err := files.Read(file, maxHostID)
	if errors.Is(err, os.ErrNotExist) {
		if err := files.Write(file, []byte(hostID+"\n"), 0o600); err != nil {
			return fmt.Errorf("store the host id: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the host id: %w", err)
	}
	if string(data) != hostID+"\n" {
		return fmt.Errorf("host id is %.80q in %s but %s in the certificate: issue a certificate for the stored id, or remove the state of a cloned disk", data, file, hostID)
	}
	return nil
}
