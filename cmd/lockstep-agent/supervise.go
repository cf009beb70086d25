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

	"github.com/lockstep-dev/lockstep/config/backoff"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
)

const (
	// stopGrace is the time that the agent has to exit after the supervisor stops.
	stopGrace = 10 * time.Second
	// watchdog is the time after which a hanging boot is reset.
	watchdog = 2 * time.Second
	// crashPause is the delay before a crashed agent is restarted, as in a service
	// manager. The machine doesn't reboot.
	crashPause = time.Second
)

// childArgs returns the arguments of the agent.
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

// supervise simulates the power and the firmware of the machine until ctx ends, the
// machine powers off, or no slot boots.
func supervise(ctx context.Context, cfg agentConfig, args []string, stderr io.Writer, log *zap.Logger) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the executable: %w", err)
	}
	if err := createMachine(cfg.sim); err != nil {
		return err
	}
	s := supervisor{dir: cfg.sim.dir, command: append([]string{exe}, args...), stderr: stderr, log: log}
	return s.power(ctx)
}

// createMachine creates the machine's directory at the first start.
func createMachine(cfg simConfig) error {
	if cfg.image == "" {
		return nil // it exists, or Boot returns the error
	}
	content, err := os.ReadFile(cfg.image)
	if err != nil {
		return fmt.Errorf("read the first OS image: %w", err)
	}
	ref, err := nodeos.ParseImageRef(cfg.imageRef)
	if cfg.imageRef != "" && err != nil {
		return fmt.Errorf("-sim-image-ref: %w", err)
	}
	image, err := sim.ImageOf("local/first-os", content)
	if err != nil {
		return fmt.Errorf("-sim-image %s: %w", cfg.image, err)
	}
	if cfg.imageRef != "" {
		image.Ref = ref
	}
	if err := os.MkdirAll(cfg.dir, 0o700); err != nil {
		return fmt.Errorf("create the machine's directory: %w", err)
	}
	return sim.Create(cfg.dir, image, content)
}

// supervisor powers one machine.
type supervisor struct {
	dir     string
	command []string
	stderr  io.Writer
	log     *zap.Logger
}

// power boots the machine after each restart.
func (s supervisor) power(ctx context.Context) (err error) {
	held, err := sim.HoldPower(ctx, s.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sim.PowerOff(s.dir), held.Close()) }()
	for ctx.Err() == nil {
		boot, err := sim.Boot(ctx, s.dir, sim.BootOptions{Sleep: backoff.Wait, Watchdog: watchdog})
		if ctx.Err() != nil {
			break // powered off during the boot
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

// session runs the agent of one boot, again after each crash, and returns the exit
// code that took the machine down; 0 when ctx ended.
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
			s.log.Warn("agent exited; restarting it in the same boot", zap.Int("code", code))
			_ = backoff.Wait(ctx, crashPause) // the loop checks ctx
		}
	}
	return 0, nil
}

// child runs the agent once and returns its exit code, -1 after a signal. It's
// terminated when ctx ends and killed when the supervisor dies.
func (s supervisor) child(ctx context.Context) (int, error) {
	type result struct {
		code int
		err  error
	}
	done := make(chan result, 1)
	go func() {
		// Pdeathsig applies to the thread that started the child.
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
