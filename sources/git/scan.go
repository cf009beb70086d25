// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

const (
	// maxObject limits one object; go-git reads objects into memory.
	maxObject = 64 << 20
	// maxInflated limits the objects of a pack together, to bound the time.
	maxInflated = 16 << 30
)

// scanPack inflates every object of a pack and rejects those that are, or as
// deltas would become, larger than maxObject. Otherwise, indexing a small pack
// could need gigabytes.
func scanPack(r io.ReadSeeker) error {
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return err
	}
	s := packfile.NewScanner(bufio.NewReader(r))
	_, count, err := s.Header()
	if err != nil {
		return err
	}
	var total int64
	for range count {
		h, err := s.NextObjectHeader()
		if err != nil {
			return err
		}
		size := h.Length
		if err := checkObject(size); err != nil {
			return err
		}
		head := &headWriter{}
		if _, _, err := s.NextObject(head); err != nil {
			return err
		}
		if h.Type == plumbing.OFSDeltaObject || h.Type == plumbing.REFDeltaObject {
			if size, err = deltaTarget(head.buf.Bytes()); err != nil {
				return err
			}
			if err := checkObject(size); err != nil {
				return err
			}
		}
		if total += size; total > maxInflated {
			return refuse(ReasonLimitExceeded, fmt.Sprintf("the objects of the pack exceed %d bytes in total", int64(maxInflated)))
		}
	}
	return nil
}

func checkObject(size int64) error {
	if size < 0 || size > maxObject {
		return refuse(ReasonLimitExceeded, fmt.Sprintf("the pack contains an object of %d bytes; the limit is %d. Store large files elsewhere", size, maxObject))
	}
	return nil
}

// deltaTarget returns the size of a delta's result: the second number of its
// header, after that of its base (gitformat-pack, "Deltified representation").
func deltaTarget(head []byte) (int64, error) {
	_, n := binary.Uvarint(head)
	if n <= 0 {
		return 0, fmt.Errorf("delta has no header")
	}
	size, m := binary.Uvarint(head[n:])
	if m <= 0 {
		return 0, fmt.Errorf("delta has no size")
	}
	return int64(min(size, maxObject+1)), nil
}

// headWriter retains the first bytes that are written to it.
type headWriter struct{ buf bytes.Buffer }

const maxHead = 2 * binary.MaxVarintLen64

// Write implements io.Writer; it never fails.
func (w *headWriter) Write(p []byte) (int, error) {
	if room := maxHead - w.buf.Len(); room > 0 {
		w.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
