// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// powerFile is locked by the process that has a machine under power. The lock
// goes with the process, however that ends: a supervisor that is killed is a
// power cut, though it leaves the file run/up behind.
const powerFile = "power.lock"

// powerRetry is how often a taken lock is tried again.
const powerRetry = 50 * time.Millisecond

// HoldPower puts the machine in dir under power until the returned closer is
// closed or the process ends. It waits for another process that has it, such
// as a supervisor that still stops, until ctx ends.
func HoldPower(ctx context.Context, dir string) (io.Closer, error) {
	f, err := os.OpenFile(filepath.Join(dir, powerFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("power on: %w", err)
	}
	for {
		lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
		err := syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &lock)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EACCES):
			return nil, errors.Join(fmt.Errorf("power on: lock %s: %w", f.Name(), err), f.Close())
		}
		timer := time.NewTimer(powerRetry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, errors.Join(fmt.Errorf("power on: the machine in %s is under another process's power: %w", dir, ctx.Err()), f.Close())
		}
	}
}

// Powered reports whether another process has the machine in dir under power. A
// machine that nobody ever held counts as powered: its tests call Boot
// themselves.
func Powered(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, powerFile), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the power: %w", err)
	}
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	err = errors.Join(syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &lock), f.Close())
	if err != nil {
		return false, fmt.Errorf("look at the power: %w", err)
	}
	return lock.Type != syscall.F_UNLCK, nil
}
