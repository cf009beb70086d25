// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package tasks holds what the phases of a host's sequences do: one file a
// task. All lists them explicitly; nothing registers itself.
//
// A task asks the machine through the small roles of nodeos.Host, and images
// through ImageSource; it takes no decision that outlives it. Every task may
// be canceled, and doing it twice is the same as once: after a crash the
// phase that ran is run again.
package tasks

import (
	"context"
	"errors"
	"io"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// ImageSource verifies and fetches OS images. What is fetched is what was
// verified: Fetch takes nothing but what Verify returned.
type ImageSource interface {
	// Verify checks the signatures of the image's digest against the host's
	// own trust policy and returns what the bytes under the digest say. An
	// error with a Reason is a refusal; others may be tried again.
	Verify(ctx context.Context, ref nodeos.ImageRef) (Verified, error)
	// Fetch opens the content that goes into a slot. The caller closes it and
	// compares its digest with Image.ContentDigest.
	Fetch(ctx context.Context, v Verified) (io.ReadCloser, error)
}

// Verified is an image that an ImageSource verified.
type Verified struct {
	// Image is what the image's own bytes say.
	Image nodeos.Image
	// Proof is the source's own record of the verification, which Fetch
	// needs; no other package can make one that it takes.
	Proof any
}

// Config is what the tasks need.
type Config struct {
	// Host is the machine.
	Host nodeos.Host
	// Images is where OS images come from.
	Images ImageSource
	// Platform gives the machine configuration.
	Platform nodeos.PlatformData
}

// All returns every task by its name in plans.
func All(cfg Config) (map[string]nodeos.TaskSetupFunc, error) {
	if cfg.Host == nil || cfg.Images == nil || cfg.Platform == nil {
		return nil, errors.New("the tasks need a host, an image source and a platform")
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
