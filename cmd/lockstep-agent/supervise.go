// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
)

const (
	// stopGrace is how long the agent has to end when the supervisor does.
	stopGrace = 10 * time.Second
	// watchdog resets a boot that hangs.
	watchdog = 2 * time.Second
	// crashPause keeps an agent that crashes at once from spinning; a service
	// manager waits likewise. The machine doesn't reboot for it.
	crashPause = time.Second
)

// childArgs are the arguments of the agent itself.
func childArgs(args []string) []string {
	var out []string
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if strings.HasPrefix(arg, "-") && name == "supervise" {
			continue
		}
		out = append(out, arg)
	}
	return out
}

// supervise plays the power and the firmware of the simulated machine until
// ctx ends, the machine powers itself off, or nothing boots any more.
func supervise(ctx context.Context, cfg agentConfig, args []string, stderr io.Writer, log *zap.Logger) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find our own program: %w", err)
	}
	if err := createMachine(cfg.sim); err != nil {
		return err
	}
	s := supervisor{dir: cfg.sim.dir, command: append([]string{exe}, args...), stderr: stderr, log: log}
	return s.power(ctx)
}

// createMachine makes the machine's directory on the first start.
func createMachine(cfg simConfig) error {
	if cfg.image == "" {
		return nil // it is there already, or Boot says what is missing
	}
	content, err := os.ReadFile(cfg.image)
	if err != nil {
		return fmt.Errorf("the machine's first system: %w", err)
	}
	ref, err := nodeos.ParseImageRef(cfg.imageRef)
	if cfg.imageRef != "" && err != nil {
		return fmt.Errorf("-sim-image-ref: %w", err)
	}
	image, err := sim.ImageOf("local/first-system", content)
	if err != nil {
		return fmt.Errorf("-sim-image %s: %w", cfg.image, err)
	}
	if cfg.imageRef != "" {
		image.Ref = ref
	}
	if err := os.MkdirAll(cfg.dir, 0o700); err != nil {
		return fmt.Errorf("make the machine's directory: %w", err)
	}
	return sim.Create(cfg.dir, image, content)
}

// supervisor is one machine under power.
type supervisor struct {
	dir     string
	command []string
	stderr  io.Writer
	log     *zap.Logger
}

// power boots the machine again and again.
func (s supervisor) power(ctx context.Context) (err error) {
	held, err := sim.HoldPower(ctx, s.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sim.PowerOff(s.dir), held.Close()) }()
	for ctx.Err() == nil {
		boot, err := sim.Boot(ctx, s.dir, sim.BootOptions{Sleep: pause, Watchdog: watchdog})
		if ctx.Err() != nil {
			break // switched off while booting
		}
		if err != nil {
			return fmt.Errorf("boot the machine in %s: %w", s.dir, err)
		}
		s.log.Info("booted", zap.String("boot", boot.BootID), zap.String("slot", boot.Slot),
			zap.String("version", boot.Document.Version), zap.Int("failedBoots", boot.Failed))
		code, err := s.session(ctx)
		if err != nil {
			return err
		}
		if code == sim.ExitPowerOff {
			s.log.Info("powered off")
			return nil
		}
	}
	return nil
}

// session runs the agent of one boot, again after each crash, and returns the
// code by which it took the machine down; 0 when ctx ended.
func (s supervisor) session(ctx context.Context) (int, error) {
	for ctx.Err() == nil {
		code, err := s.child(ctx)
		if err != nil {
			return 0, err
		}
		switch code {
		case sim.ExitRestart, sim.ExitPowerOff, sim.ExitPowerLoss:
			return code, nil
		}
		if ctx.Err() == nil {
			s.log.Warn("the agent ended; it is started again in the same boot", zap.Int("code", code))
			_ = pause(ctx, crashPause) // the loop looks at ctx
		}
	}
	return 0, nil
}

// child runs the agent once and returns its exit code, -1 after a signal. It
// is asked to end when ctx ends, and dies with the supervisor.
func (s supervisor) child(ctx context.Context) (int, error) {
	type result struct {
		code int
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// The parent's death that the kernel tells the child of is this thread's.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
		cmd.Stdout, cmd.Stderr = s.stderr, s.stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = stopGrace
		err := cmd.Run()
		var exit *exec.ExitError
		switch {
		case err == nil:
			done <- result{}
		case errors.As(err, &exit):
			done <- result{code: exit.ExitCode()}
		case ctx.Err() != nil:
			done <- result{}
		default:
			done <- result{err: fmt.Errorf("start the agent: %w", err)}
		}
	}()
	r := <-done
	return r.code, r.err
}

// pause waits, or returns the context's error when it ended first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
