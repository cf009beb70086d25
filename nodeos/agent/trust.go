// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/trust"
)

// maxTrustFile limits the stored trust document, in bytes.
const maxTrustFile = 1 << 20

// TrustStore stores the host's trust document outside the slots, in two
// checksummed copies, so that a power loss during a write leaves one of them
// intact. It accepts only valid successors of the stored document. It's safe for
// concurrent use.
type TrustStore struct {
	dir string
	now func() time.Time

	mu      sync.Mutex
	current *trust.Accepted
	serial  uint64
}

// trustCopy is one stored copy.
type trustCopy struct {
	// Format is the version of this layout.
	Format int `json:"format"`
	// Serial is the number of the write; the higher one is newer.
	Serial uint64 `json:"serial"`
	// Sum is the SHA-256 of Body in hex.
	Sum string `json:"sum"`
	// Body is the output of trust.Accepted.Marshal.
	Body []byte `json:"body"`
}

// OpenTrustStore reads the stored document. A host without one accepts no image
// until a document is pinned.
func OpenTrustStore(dir string, now func() time.Time) (*TrustStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the trust policy: %w", err)
	}
	s := &TrustStore{dir: dir, now: now}
	var broken []error
	for i := range 2 {
		c, err := readTrustCopy(s.path(i))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			broken = append(broken, err)
		case c.Serial > s.serial:
			accepted, err := trust.Load(c.Body)
			if err != nil {
				broken = append(broken, fmt.Errorf("%s: %w", s.path(i), err))
				continue
			}
			s.current, s.serial = &accepted, c.Serial
		}
	}
	if s.current == nil && len(broken) > 0 {
		// Don't continue without a document: any caller could then pin one.
		return nil, fmt.Errorf("read the trust policy in %s: no readable copy: %w", dir, errors.Join(broken...))
	}
	return s, nil
}

// Current returns the current document; false without one.
func (s *TrustStore) Current() (trust.Accepted, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return trust.Accepted{}, false
	}
	return s.current.Settle(s.now()), true
}

// Pin stores the first document of a host, whose digest was received separately
// (from the package configuration or the installer). It does nothing if a
// document is stored.
func (s *TrustStore) Pin(envelope []byte, digest trust.Digest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		return nil // only a successor replaces it
	}
	accepted, err := trust.Pin(envelope, digest, s.now())
	if err != nil {
		return err
	}
	return s.store(accepted)
}

// Deliver accepts a document from any caller if the root of the current document
// signed it as a successor; else it returns an error. It reports whether the
// document changed.
func (s *TrustStore) Deliver(envelope []byte) (trust.Accepted, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	accepted, err := trust.Accept(s.current, envelope, now)
	if err != nil {
		return trust.Accepted{}, false, err
	}
	accepted = accepted.Settle(now)
	before, err := marshalTrust(s.current)
	if err != nil {
		return trust.Accepted{}, false, err
	}
	after, err := marshalTrust(&accepted)
	if err != nil {
		return trust.Accepted{}, false, err
	}
	if bytes.Equal(before, after) {
		return accepted, false, nil
	}
	return accepted, true, s.store(accepted)
}

func marshalTrust(a *trust.Accepted) ([]byte, error) {
	if a == nil {
		return nil, nil
	}
	body, err := a.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode the trust policy: %w", err)
	}
	return body, nil
}

// store writes the older copy first, so that one valid copy always exists.
func (s *TrustStore) store(accepted trust.Accepted) error {
	body, err := marshalTrust(&accepted)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	for range 2 {
		s.serial++
		data, err := json.Marshal(trustCopy{Format: 1, Serial: s.serial, Sum: hex.EncodeToString(sum[:]), Body: body})
		if err != nil {
			return fmt.Errorf("encode the trust policy: %w", err)
		}
		path := s.path(int(s.serial % 2))
		if err := files.WriteKeepMode(path, data, 0o600); err != nil {
			return fmt.Errorf("store the trust policy in %s: %w", path, err)
		}
		// One copy on disk is sufficient.
		s.current = &accepted
	}
	return nil
}

func (s *TrustStore) path(i int) string { return filepath.Join(s.dir, fmt.Sprintf("trust.%d", i)) }

func readTrustCopy(path string) (trustCopy, error) {
	data, err := files.Read(path, 2*maxTrustFile)
	if err != nil {
		return trustCopy{}, err
	}
	var c trustCopy
	if err := json.Unmarshal(data, &c); err != nil {
		return trustCopy{}, fmt.Errorf("%s is damaged: %w", path, err)
	}
	if sum := sha256.Sum256(c.Body); c.Format != 1 || hex.EncodeToString(sum[:]) != c.Sum {
		return trustCopy{}, fmt.Errorf("%s is damaged: format %d, or wrong checksum", path, c.Format)
	}
	return c, nil
}
