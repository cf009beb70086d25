// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// forImage sets up a task that requires the image of its operation.
func forImage(name string, run func(ctx context.Context, log *zap.Logger, r nodeos.Runtime, t target) error) nodeos.TaskSetupFunc {
	return func(_ nodeos.Sequence, call nodeos.TaskCall) (nodeos.TaskExecutionFunc, string) {
		return func(ctx context.Context, log *zap.Logger, r nodeos.Runtime) error {
			t, err := targetOf(call)
			if err != nil {
				return err
			}
			return run(ctx, log, r, t)
		}, name
	}
}

// target is the image of an operation.
type target struct {
	ref              nodeos.ImageRef
	product, version string
	call             nodeos.TaskCall
}

// targetOf returns the image of the request, or of the trial for an operation that
// the agent opened for it.
func targetOf(call nodeos.TaskCall) (target, error) {
	if r, ok := call.Request.(nodeos.UpgradeRequest); ok {
		return target{ref: r.Image, product: r.Product, version: r.Version, call: call}, nil
	}
	if t := call.Memory.Trial; t != nil {
		return target{ref: t.Image.Ref, product: t.Image.Product, version: t.Image.Version, call: call}, nil
	}
	return target{}, fmt.Errorf("%w: operation %s has no image", nodeos.ErrInvalidSequenceData, call.OperationID)
}

// verified verifies the image and compares its product and version with the
// request.
func verified(ctx context.Context, images ImageSource, t target) (Verified, error) {
	v, err := images.Verify(ctx, t.ref)
	if err != nil {
		return Verified{}, fmt.Errorf("verify %s: %w", t.ref, err)
	}
	if v.Image.Ref.Digest != t.ref.Digest {
		return Verified{}, nodeos.Refuse("WrongDigest", "verify %s: the verified digest is %s", t.ref, v.Image.Ref.Digest)
	}
	if t.product != "" && v.Image.Product != t.product {
		return Verified{}, nodeos.Refuse("NameMismatch", "%s has product %q, the order has %q", t.ref, v.Image.Product, t.product)
	}
	if c, err := nodeos.CompareVersions(v.Image.Version, t.version); err != nil || c != 0 {
		return Verified{}, nodeos.Refuse("NameMismatch", "%s has version %q, the order has %q", t.ref, v.Image.Version, t.version)
	}
	return v, nil
}
