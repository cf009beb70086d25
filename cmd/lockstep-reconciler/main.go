// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command lockstep-reconciler runs in the cluster: it fetches Git sources, verifies
// and applies releases, rolls out operating systems and writes status back.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/lockstep-dev/lockstep/config/outbound"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/reconciler"
)

// version is set by the linker; "dev" otherwise.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lockstep-reconciler:", err)
		os.Exit(1)
	}
}

// flags are the parsed command line.
type flags struct {
	kubeconfig string
	logFormat  string
	logLevel   string
	rootDigest string
	outbound   outbound.Options
	options    reconciler.Options
}

// run parses the command line and runs the operator until ctx ends.
func run(ctx context.Context, args []string, stderr io.Writer) error {
	f, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	log, err := newLogger(f.logFormat, f.logLevel, stderr)
	if err != nil {
		return err
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log.V(1))
	cfg, err := clusterConfig(f.kubeconfig)
	if err != nil {
		return err
	}
	if f.rootDigest != "" {
		if f.options.TrustRootDigest, err = trust.ParseDigest(f.rootDigest); err != nil {
			return fmt.Errorf("--trust-root-digest: %w", err)
		}
	}
	f.options.Config, f.options.Log, f.options.Version, f.options.Now = cfg, log, version, time.Now
	operator, err := reconciler.New(ctx, f.options)
	if err != nil {
		return err
	}
	log.Info("starting", "version", version, "server", cfg.Host)
	return operator.Run(ctx)
}

func parse(args []string, stderr io.Writer) (flags, error) {
	var f flags
	o := &f.options
	fs := flag.NewFlagSet("lockstep-reconciler", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "path to the kubeconfig (default: $KUBECONFIG or the pod's service account)")
	fs.StringVar(&f.logFormat, "log-format", "json", "json or console")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info or error")
	fs.StringVar(&f.rootDigest, "trust-root-digest", "", "digest of the first trust policy, sha256:<hex>; pinned at installation")
	fs.StringVar(&o.StateDir, "state-dir", "/var/lib/lockstep", "directory for caches of Git and registry content; may be deleted at any time")
	fs.StringVar(&o.RegistriesFile, "registries", "", "file with mirrors, CAs and credentials of registries")
	f.outbound.AddFlags(fs)
	fs.BoolVar(&o.AllowLoopbackRegistries, "allow-loopback-registries", false, "insecure: use registries on loopback addresses without TLS")
	fs.BoolVar(&o.AllowInsecureSources, "allow-insecure-sources", false, "insecure: use Git sources over http and file")
	fs.StringVar(&o.AgentPKIDir, "pki-dir", "", "directory with ca.crt, tls.crt and tls.key for connecting to agents (lockstep pki issue caller); without it hosts aren't managed")
	fs.StringVar(&o.ClusterUID, "cluster-uid", "", "UID of the cluster in certificates and fences (default: the UID of namespace kube-system)")
	fs.BoolVar(&o.LeaderElection, "leader-elect", true, "enable leader election")
	fs.DurationVar(&o.LeaseDuration, "lease-duration", 30*time.Second, "duration of the leader's lease")
	fs.StringVar(&o.MetricsAddress, "metrics-address", "127.0.0.1:8080", "bind address of the metrics endpoint; 0 disables it")
	fs.StringVar(&o.HealthAddress, "health-address", ":8081", "bind address of /healthz and /readyz; 0 disables them")
	fs.StringVar(&o.EventsAddress, "events-address", "", "address of a Flux notification-controller for events")
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	if fs.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	var err error
	if o.Outbound, err = f.outbound.Load(); err != nil {
		return f, err
	}
	dir, err := filepath.Abs(o.StateDir)
	if err != nil {
		return f, fmt.Errorf("--state-dir: %w", err)
	}
	o.StateDir = dir
	return f, nil
}

// newLogger returns a zap logger.
func newLogger(format, level string, out io.Writer) (logr.Logger, error) {
	lvl, err := zapcore.ParseLevel(level)
	if err != nil {
		return logr.Discard(), fmt.Errorf("--log-level %q: want debug, info or error", level)
	}
	cfg := zap.NewProductionEncoderConfig()
	cfg.TimeKey, cfg.EncodeTime = "time", zapcore.RFC3339NanoTimeEncoder
	var enc zapcore.Encoder
	switch format {
	case "json":
		enc = zapcore.NewJSONEncoder(cfg)
	case "console":
		cfg.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		enc = zapcore.NewConsoleEncoder(cfg)
	default:
		return logr.Discard(), fmt.Errorf("--log-format %q: want json or console", format)
	}
	return zapr.NewLogger(zap.New(zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(out)), lvl))), nil
}

// clusterConfig returns the client configuration from the file, the environment
// or the pod.
func clusterConfig(path string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("cluster configuration: %w; set --kubeconfig or KUBECONFIG, or run in a pod", err)
	}
	// The server has priority and fairness; a client-side limit would only add
	// invisible queues.
	cfg.QPS = -1
	cfg.UserAgent = "lockstep-reconciler/" + version
	return cfg, nil
}
