// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"errors"
	"fmt"
	"io"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// progressStep is the number of bytes between two progress events.
const progressStep = 8 << 20

// stageImage verifies the image again, then writes the inactive slot. It doesn't
// fetch an image that is already in the slot.
func stageImage(host nodeos.Stager, images ImageSource) nodeos.TaskSetupFunc {
	return forImage(nodeos.TaskStageImage, func(ctx context.Context, log *zap.Logger, r nodeos.Runtime, t target) (err error) {
		v, err := verified(ctx, images, t)
		if err != nil {
			return err
		}
		content := &lazy{open: func() (io.ReadCloser, error) { return images.Fetch(ctx, v) }}
		content.progress = func(done int64) {
			r.Events().Publish(t.call.OperationID, nodeos.EventProgress{
				Task: nodeos.TaskStageImage, Done: done, Total: v.Image.Size, Unit: "bytes",
			})
		}
		defer func() { err = errors.Join(err, content.close()) }()
		slot, err := host.Stage(ctx, v.Image, content)
		if err != nil {
			return fmt.Errorf("stage %s: %w", t.ref, err)
		}
		log.Info("image staged", zap.String("slot", slot.Name), zap.String("version", v.Image.Version))
		return nil
	})
}

// lazy opens its content at the first read.
type lazy struct {
	open     func() (io.ReadCloser, error)
	progress func(done int64)
	body     io.ReadCloser
	done     int64
	next     int64
}

// Read implements io.Reader.
func (l *lazy) Read(p []byte) (int, error) {
	if l.body == nil {
		body, err := l.open()
		if err != nil {
			return 0, fmt.Errorf("fetch the image: %w", err)
		}
		l.body = body
	}
	n, err := l.body.Read(p)
	l.done += int64(n)
	if l.done >= l.next {
		l.next = l.done + progressStep
		l.progress(l.done)
	}
	return n, err
}

func (l *lazy) close() error {
	if l.body == nil {
		return nil
	}
	return l.body.Close()
}
