// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package tasks implements the tasks of a host's sequences, one per file. All lists
// them explicitly.
//
// A task uses the machine through the roles of nodeos.Host and images through
// ImageSource. Every task can be canceled and is idempotent: after a crash the
// interrupted phase runs again.
package tasks

import (
	"context"
	"errors"
	"io"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// ImageSource verifies and fetches OS images. Fetch accepts only results of Verify,
// so that only verified images are fetched.
type ImageSource interface {
	// Verify checks the signatures of the image's digest against the host's trust
	// policy and returns the image as its bytes describe it. An error with a Reason is
	// a refusal; other errors can be retried.
	Verify(ctx context.Context, ref nodeos.ImageRef) (Verified, error)
	// Fetch opens the content of a slot. The caller closes it and compares its digest
	// with Image.ContentDigest.
	Fetch(ctx context.Context, v Verified) (io.ReadCloser, error)
}

// Verified is the result of ImageSource.Verify.
type Verified struct {
	// Image is the image as its bytes describe it.
	Image nodeos.Image
	// Proof is the source's record of the verification, required by Fetch; other
	// packages can't create a valid one.
	Proof any
}

// Config configures the tasks.
type Config struct {
	// Host is the machine.
	Host nodeos.Host
	// Images is the source of OS images.
	Images ImageSource
	// Platform provides the machine configuration.
	Platform nodeos.PlatformData
}

// All returns the tasks by name.
func All(cfg Config) (map[string]nodeos.TaskSetupFunc, error) {
	if cfg.Host == nil || cfg.Images == nil || cfg.Platform == nil {
		return nil, errors.New("tasks configuration: Host, Images and Platform are required")
	}
	return map[string]nodeos.TaskSetupFunc{
		nodeos.TaskLoadConfig:       loadConfig(cfg.Platform),
		nodeos.TaskPrecheckImage:    precheckImage(cfg.Host, cfg.Images),
		nodeos.TaskStageImage:       stageImage(cfg.Host, cfg.Images),
		nodeos.TaskStopServices:     stopServices(cfg.Host),
		nodeos.TaskStartServices:    startServices(cfg.Host),
		nodeos.TaskSetNextBoot:      setNextBoot(cfg.Host),
		nodeos.TaskClearNextBoot:    clearNextBoot(cfg.Host),
		nodeos.TaskRestart:          restart(cfg.Host),
		nodeos.TaskVerifyBooted:     verifyBooted(cfg.Host),
		nodeos.TaskCommit:           commit(cfg.Host),
		nodeos.TaskPrecheckRollback: precheckRollback(cfg.Host),
		nodeos.TaskRestore:          restore(cfg.Host),
		nodeos.TaskVerifyRestored:   verifyRestored(cfg.Host),
		nodeos.TaskPrecheckReset:    precheckReset(cfg.Host),
		nodeos.TaskWipe:             wipe(cfg.Host),
	}, nil
}
