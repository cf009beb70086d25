// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// stopGrace is the time that a component has to end on SIGTERM.
const stopGrace = 10 * time.Second

// Pause freezes the API server (SIGSTOP): connections stay open and aren't
// answered, as in a partition. Resume ends it.
func (c *Cluster) Pause() error { return c.signalAPIServer(syscall.SIGSTOP) }

// Resume resumes a paused API server.
func (c *Cluster) Resume() error { return c.signalAPIServer(syscall.SIGCONT) }

func (c *Cluster) signalAPIServer(sig syscall.Signal) error {
	p, err := c.process(apiServer)
	if err != nil {
		return err
	}
	return p.signal(sig)
}

// StopAPIServer ends the API server: connections are refused until
// StartAPIServer. Its data are kept.
func (c *Cluster) StopAPIServer() error {
	p, err := c.process(apiServer)
	if err != nil {
		return err
	}
	return p.stop(stopGrace)
}

// StartAPIServer starts a stopped API server on its old address and waits until
// it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if err := c.startComponent(apiServer); err != nil {
		return err
	}
	return c.WaitReady(ctx)
}

// RestartAPIServer stops and starts the API server; watches break.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	if err := c.StopAPIServer(); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// Snapshot copies etcd's data to dir, which must not exist. The API server and
// etcd are stopped meanwhile.
func (c *Cluster) Snapshot(ctx context.Context, dir string) error {
	return c.whileDown(ctx, func() error {
		if err := os.CopyFS(dir, os.DirFS(c.file(etcd))); err != nil {
			return fmt.Errorf("copy etcd's data: %w", err)
		}
		return nil
	})
}

// Restore restores data of Snapshot: later changes are lost and resource
// versions are lower, as after a real disaster.
func (c *Cluster) Restore(ctx context.Context, dir string) error {
	return c.whileDown(ctx, func() error {
		if err := os.RemoveAll(c.file(etcd)); err != nil {
			return fmt.Errorf("remove etcd's data: %w", err)
		}
		if err := os.CopyFS(c.file(etcd), os.DirFS(dir)); err != nil {
			return fmt.Errorf("copy etcd's data back: %w", err)
		}
		if err := os.Chmod(c.file(etcd), 0o700); err != nil { //nolint:gosec // a directory: etcd must enter it
			return fmt.Errorf("close etcd's data to others: %w", err)
		}
		return nil
	})
}

// whileDown stops the API server and etcd, runs do, and starts them again.
func (c *Cluster) whileDown(ctx context.Context, do func() error) error {
	if err := c.StopAPIServer(); err != nil {
		return err
	}
	store, err := c.process(etcd)
	if err != nil {
		return err
	}
	if err := store.stop(stopGrace); err != nil {
		return err
	}
	err = do()
	if startErr := c.startComponent(etcd); startErr != nil {
		return errors.Join(err, startErr)
	}
	return errors.Join(err, c.StartAPIServer(ctx))
}
