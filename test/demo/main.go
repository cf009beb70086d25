// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command demo demonstrates Lockstep on this machine: a Git commit becomes a
// running release and upgraded hosts, with signatures enforced and status written
// back. It starts what it needs, checks each step against the cluster, Git and the
// hosts, and stops everything at the end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lockstep-dev/lockstep/test/controlplane"
	"github.com/lockstep-dev/lockstep/test/env"
)

func main() {
	log.SetOutput(io.Discard) // the Git server logs each request there
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// hosts is the number of hosts.
const hosts = 3

func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "lockstep-demo-")
	if err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	defer func() {
		if err != nil {
			fmt.Fprintf(out, "\nlogs and data are in %s\n", dir)
			return
		}
		_ = os.RemoveAll(dir)
	}()
	s := &screen{out: out, start: time.Now()}
	s.title("Lockstep: a commit becomes a running release and upgraded hosts")
	bin := filepath.Join(dir, "bin")
	plane := prepareControlPlane(ctx, s)
	if err := buildPrograms(ctx, s, bin); err != nil {
		return err
	}
	if err := offline(ctx, s, bin, filepath.Join(dir, "offline")); err != nil {
		return err
	}
	if err := plane(); err != nil {
		return err
	}
	s.title("Starting a control plane, a Git server, a registry and hosts")
	work := filepath.Join(dir, "env")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	w, err := env.New(ctx, env.Options{Dir: work, Bin: bin, Hosts: hosts, Log: s.note})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	d := &demo{w: w, s: s}
	passed, err := d.play(ctx)
	if err != nil {
		fmt.Fprintf(out, "\ndemo: %d of %d steps passed\n", passed, len(d.steps()))
		return err
	}
	fmt.Fprintf(out, "\ndemo: %d of %d steps passed\n", passed, len(d.steps()))
	if os.Getenv("DEMO_KEEP") != "" {
		keep(ctx, out, w, bin)
	}
	return nil
}

// prepareControlPlane builds the control plane in the background if it isn't
// cached, and returns a function that waits for it.
func prepareControlPlane(ctx context.Context, s *screen) func() error {
	done := make(chan error, 1)
	go func() {
		_, err := controlplane.Ensure(ctx, s.background())
		if err == nil {
			_, err = controlplane.EnsureKwok(ctx, s.background())
		}
		done <- err
	}()
	return func() error {
		select {
		case err := <-done:
			return err
		default:
		}
		s.note("waiting for the control plane to be compiled (once, about five minutes on two cores)")
		return <-done
	}
}

// buildPrograms builds the programs of the demo.
func buildPrograms(ctx context.Context, s *screen, bin string) error {
	s.note("building lockstep, lockstep-reconciler, lockstep-agent")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return fmt.Errorf("directory of the programs: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", bin+"/", "./cmd/...", "./test/simnode/simnode")
	stop := s.ticking("still building")
	output, err := cmd.CombinedOutput()
	stop()
	if err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	return nil
}

// keep keeps everything running until it is interrupted.
func keep(ctx context.Context, out io.Writer, w *env.Env, bin string) {
	fmt.Fprintf(out, `
Everything keeps running until you press Ctrl-C. In another terminal, try:

  export KUBECONFIG=%s PATH=%s:$PATH GIT_SSL_CAINFO=%s
  lockstep status --watch
  kubectl get clusterreleases,nodeos,hosts -n lockstep-system
  git clone -b main %s
  git -C fleet log --show-signature origin/lockstep-status/%s
  logs: %s
`, w.Control.Kubeconfig(), bin, w.Path("git-ca.crt"), w.Git.CloneURL(), env.Cluster, w.Path("*.log"))
	<-ctx.Done()
}

// screen writes the progress of the demo.
type screen struct {
	out   io.Writer
	start time.Time
}

func (s *screen) title(text string) { fmt.Fprintf(s.out, "\n== %s\n", text) }

func (s *screen) note(format string, args ...any) {
	fmt.Fprintf(s.out, "   %5.1fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}

// show prints what a program printed, indented.
func (s *screen) show(command, output string) {
	fmt.Fprintf(s.out, "          $ %s\n", command)
	for line := range strings.Lines(strings.TrimRight(output, "\n")) {
		fmt.Fprintf(s.out, "          | %s\n", strings.TrimRight(line, "\n"))
	}
}

// ticking reports every ten seconds that something is still running; the returned
// function stops it.
func (s *screen) ticking(what string) func() {
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(10 * time.Second)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				s.note("%s …", what)
			}
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}

// background returns a writer for the progress of a concurrent build: a line every
// ten seconds.
func (s *screen) background() io.Writer { return &sparse{s: s} }

// sparse forwards the newest line, at most every ten seconds.
type sparse struct {
	s    *screen
	last time.Time
}

func (p *sparse) Write(b []byte) (int, error) {
	if now := time.Now(); now.Sub(p.last) >= 10*time.Second {
		p.last = now
		lines := strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' || r == '\r' })
		if len(lines) > 0 {
			p.s.note("control plane: %s", strings.TrimSpace(lines[len(lines)-1]))
		}
	}
	return len(b), nil
}
