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

// powerFile is locked by the process that powers a machine. The lock ends with the
// process, so that a killed supervisor is a power loss even though it leaves the
// file run/up behind.
const powerFile = "power.lock"

// powerRetry is the interval between attempts at a held lock.
const powerRetry = 50 * time.Millisecond

// HoldPower powers the machine in dir until the returned closer is closed or the
// process ends. It waits until ctx ends for another process that powers it, such as
// a supervisor that is still stopping.
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
			return nil, errors.Join(fmt.Errorf("power on: the machine in %s is powered by another process: %w", dir, ctx.Err()), f.Close())
		}
	}
}

// Powered reports whether another process powers the machine in dir. A machine
// without a power file counts as powered: tests call Boot themselves.
func Powered(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, powerFile), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("check the power: %w", err)
	}
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart}
	err = errors.Join(syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &lock), f.Close())
	if err != nil {
		return false, fmt.Errorf("check the power: %w", err)
	}
	return lock.Type != syscall.F_UNLCK, nil
}
