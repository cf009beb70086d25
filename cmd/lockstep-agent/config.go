// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/nodeos/agent"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/nodeos/platform"
	"github.com/lockstep-dev/lockstep/nodeos/runner"
)

// agentConfig is the configuration from the command line. The agent reads no
// configuration from the network or the environment.
type agentConfig struct {
	listen          string
	stateDir        string
	pkiDir          string
	untrustedCA     string
	clusterUID      string
	nodeName        string
	platform        string
	platformDir     string
	backend         string
	trustPolicy     string
	trustDigest     trust.Digest
	registries      string
	outbound        outbound.Options
	restartInterval time.Duration
	logLevel        string
	sim             simConfig
	insecure        insecureOptions
}

// simConfig configures the simulated machine.
type simConfig struct {
	dir       string
	supervise bool
	image     string
	imageRef  string
}

// insecureOptions weaken the security for development; enabled ones are logged.
type insecureOptions struct {
	plainHTTP bool
	loopback  bool
}

// enabled returns the names of the enabled options.
func (d insecureOptions) enabled() []string {
	var names []string
	if d.plainHTTP {
		names = append(names, "allow-plain-http")
	}
	if d.loopback {
		names = append(names, "allow-loopback-registries")
	}
	return names
}

// parse parses the command line; flag.ErrHelp means that help was requested.
func parse(args []string, stderr io.Writer) (agentConfig, error) {
	var c agentConfig
	var digest string
	set := flag.NewFlagSet("lockstep-agent", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&c.listen, "listen", ":"+strconv.Itoa(agent.DefaultPort), "address to listen on")
	set.StringVar(&c.stateDir, "state-dir", "/var/lib/lockstep", "directory for the journal, the trust policy and the host id; must not be in a slot")
	set.StringVar(&c.pkiDir, "pki-dir", "/etc/lockstep/pki", "directory with tls.crt, tls.key and ca.crt of the callers (lockstep pki issue host)")
	set.StringVar(&c.untrustedCA, "refuse-ca", "", "CA file that must not be the callers' CA, for example the API server's client CA")
	set.StringVar(&c.clusterUID, "cluster-uid", "", "UID of the host's cluster")
	set.StringVar(&c.nodeName, "node-name", "", "name of the host's Node (default: from the machine configuration)")
	set.StringVar(&c.platform, "platform", "metal", "platform of the host: "+strings.Join(platform.Names(), ", "))
	set.StringVar(&c.platformDir, "platform-dir", "/etc/lockstep", "directory with the platform's files, for example machine.yaml")
	set.StringVar(&c.backend, "backend", "sim", "host backend: sim")
	set.StringVar(&c.trustPolicy, "trust-policy", "", "envelope of the first trust policy (root.json)")
	set.StringVar(&digest, "trust-root-digest", "", "digest of the first trust policy, sha256:<hex>")
	set.StringVar(&c.registries, "registries", "", "file with mirrors, CAs and credentials of registries")
	set.DurationVar(&c.restartInterval, "min-restart-interval", runner.DefaultRestartInterval, "minimum interval between two remote reboots")
	set.StringVar(&c.logLevel, "log-level", "info", "debug, info, warn or error")
	set.StringVar(&c.sim.dir, "sim-dir", "", "directory of the simulated machine")
	set.BoolVar(&c.sim.supervise, "supervise", false, "run as the simulated machine's firmware: boot it and supervise its agent process")
	set.StringVar(&c.sim.image, "sim-image", "", "file with the OS of a new simulated machine")
	set.StringVar(&c.sim.imageRef, "sim-image-ref", "", "repository@sha256:… of that OS (default: the digest of the file)")
	c.outbound.AddFlags(set)
	set.BoolVar(&c.insecure.plainHTTP, "allow-plain-http", false, "insecure: use HTTP for hosts with plainHTTP in the registries file")
	set.BoolVar(&c.insecure.loopback, "allow-loopback-registries", false, "insecure: use registries on loopback addresses without TLS")
	if err := set.Parse(args); err != nil {
		return agentConfig{}, err
	}
	if set.NArg() > 0 {
		return agentConfig{}, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if digest != "" {
		var err error
		if c.trustDigest, err = trust.ParseDigest(digest); err != nil {
			return agentConfig{}, fmt.Errorf("-trust-root-digest: %w", err)
		}
	}
	return c, c.check()
}

// check returns all errors of the configuration.
func (c agentConfig) check() error {
	var all []error
	need := func(bad bool, format string, args ...any) {
		if bad {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	need(c.backend != "sim", "-backend %q: want sim", c.backend)
	need(c.backend == "sim" && c.sim.dir == "", "-sim-dir: required for the simulated machine")
	need(!slices.Contains(platform.Names(), c.platform), "-platform %q: want one of %v", c.platform, platform.Names())
	need(c.stateDir == "", "-state-dir: required")
	need((c.trustPolicy == "") != (c.trustDigest == ""), "-trust-policy and -trust-root-digest must be set together")
	if _, _, err := net.SplitHostPort(c.listen); err != nil {
		all = append(all, fmt.Errorf("-listen: %w", err))
	}
	if err := mtls.CheckID("-cluster-uid", c.clusterUID); err != nil {
		all = append(all, err)
	}
	return errors.Join(all...)
}
