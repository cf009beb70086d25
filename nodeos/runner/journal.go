// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/lockstep-dev/lockstep/config/files"
)

// The journal's format. A file is a header and records. The header is the
// magic and the version (4 bytes, big endian). A record is the length of its
// body and the CRC-32C of the body (4 bytes each, big endian), then the body: a
// whole State as JSON. Only the last valid record is used, so a torn record at
// the end (after a crash) and a damaged one in the middle are harmless.
const (
	journalMagic   = "LOCKSTEPJOURNAL\n"
	journalVersion = 1
	// journalMinVersion and journalMaxVersion are the supported versions, up to the next
	// one, whose states may have unknown fields.
	journalMinVersion = 1
	journalMaxVersion = journalVersion + 1

	headerSize  = len(journalMagic) + 4
	frameSize   = 8
	maxRecord   = 512 << 10
	maxJournal  = 16 << 20
	compactSize = 1 << 20

	journalName = "journal"
)

// ErrJournal means that a file isn't a journal or has an unsupported version.
var ErrJournal = errors.New("not a journal, or an unsupported version")

// Journal is the persisted State of a host. Its methods are safe for concurrent
// use; a lock file excludes other processes.
type Journal struct {
	dir     string
	mu      sync.Mutex
	file    *os.File
	lock    *os.File
	size    int64
	state   State
	damaged int
}

// OpenJournal opens the journal in a directory, or creates one with a new
// installation id. A torn record is discarded.
func OpenJournal(dir string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the journal's directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(dir, journalName+".lock"))
	if err != nil {
		return nil, err
	}
	j := &Journal{dir: dir, lock: lock}
	if err := j.load(); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

// lockFile locks out other processes until the file is closed.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the journal: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the journal %s: is another agent running? %w", name, err), f.Close())
	}
	return f, nil
}

// load reads the file and opens it for appending, or creates it.
func (j *Journal) load() error {
	name := filepath.Join(j.dir, journalName)
	data, err := files.Read(name, maxJournal)
	var limit *files.LimitError
	switch {
	case errors.Is(err, os.ErrNotExist):
		j.state = State{InstallationID: rand.Text()}
		return j.rewrite()
	case errors.As(err, &limit):
		return fmt.Errorf("%w: %w", ErrJournal, err)
	case err != nil:
		return fmt.Errorf("read the journal: %w", err)
	}
	got, err := ReadJournal(data)
	if err != nil {
		return fmt.Errorf("read the journal %s: %w", name, err)
	}
	j.state, j.damaged = got.State, got.Damaged
	if got.State.InstallationID == "" {
		// The first record never reached the disk.
		j.state.InstallationID = rand.Text()
	}
	return j.rewrite()
}

// Contents is the decoded content of a journal.
type Contents struct {
	// State is the last valid record; zero without one.
	State State
	// Records is the number of valid records.
	Records int
	// Damaged is the number of records with a wrong checksum or body.
	Damaged int
	// Torn means that the file ends within a record.
	Torn bool
}

// ReadJournal decodes a journal. Only another file type or an unsupported
// version is an error.
func ReadJournal(data []byte) (Contents, error) {
	var c Contents
	if len(data) > maxJournal {
		return c, fmt.Errorf("%w: larger than %d bytes", ErrJournal, maxJournal)
	}
	if len(data) < headerSize {
		if !bytes.HasPrefix(append([]byte(journalMagic), 0, 0, 0, journalVersion), data) {
			return c, fmt.Errorf("%w: no magic %q at the start", ErrJournal, journalMagic)
		}
		c.Torn = true
		return c, nil
	}
	if string(data[:len(journalMagic)]) != journalMagic {
		return c, fmt.Errorf("%w: no magic %q at the start", ErrJournal, journalMagic)
	}
	if v := binary.BigEndian.Uint32(data[len(journalMagic):]); v < journalMinVersion || v > journalMaxVersion {
		return c, fmt.Errorf("%w: version is %d, want %d to %d", ErrJournal, v, journalMinVersion, journalMaxVersion)
	}
	for rest := data[headerSize:]; len(rest) > 0; {
		size, ok := c.record(rest)
		if !ok {
			break
		}
		rest = rest[size:]
	}
	return c, nil
}

// record decodes one record and returns its size; false ends the journal.
func (c *Contents) record(rest []byte) (int, bool) {
	if len(rest) < frameSize {
		c.Torn = true
		return 0, false
	}
	n := int(binary.BigEndian.Uint32(rest))
	if n == 0 || n > maxRecord { // the length itself is damaged
		c.Damaged++
		return 0, false
	}
	if len(rest) < frameSize+n {
		c.Torn = true
		return 0, false
	}
	body := rest[frameSize : frameSize+n]
	var s State
	if crcOf(body) != binary.BigEndian.Uint32(rest[4:]) || json.Unmarshal(body, &s) != nil || s.check() != nil {
		c.Damaged++
		return frameSize + n, true
	}
	c.Records++
	c.State = s
	return frameSize + n, true
}

func crcOf(body []byte) uint32 { return crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) }

// check returns an error for a decoded state that the core can't process.
func (s State) check() error {
	if op := s.Op; op != nil && (op.Index < 0 || op.Index >= len(op.Plan)) {
		return fmt.Errorf("operation %s is at phase %d of %d", op.ID, op.Index+1, len(op.Plan))
	}
	if s.Op == nil && s.Next != nil {
		return errors.New("an operation waits, but none is running")
	}
	return nil
}

// frame returns the record of a state.
func frame(s State) ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the journal's record: %w", err)
	}
	if len(body) > maxRecord {
		return nil, fmt.Errorf("encode the journal's record: %d bytes, at most %d are allowed", len(body), maxRecord)
	}
	out := make([]byte, frameSize, frameSize+len(body))
	binary.BigEndian.PutUint32(out, uint32(len(body))) //nolint:gosec // bounded above.
	binary.BigEndian.PutUint32(out[4:], crcOf(body))
	return append(out, body...), nil
}

// State returns the last state.
func (j *Journal) State() State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.clone()
}

// StartIn returns the number of the next agent start in that boot, from 1.
func (j *Journal) StartIn(bootID string) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state.BootID != bootID {
		return 1
	}
	return j.state.Starts + 1
}

// Damaged returns the number of damaged records at opening.
func (j *Journal) Damaged() int { return j.damaged }

// Append stores s as the last state; it's on disk when Append returns nil.
func (j *Journal) Append(s State) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	s.Number = j.state.Number + 1
	record, err := frame(s)
	if err != nil {
		return err
	}
	if j.file == nil || j.size+int64(len(record)) > compactSize {
		old := j.state
		j.state = s
		if err := j.rewrite(); err != nil {
			j.state = old
			return err
		}
		return nil
	}
	if err := j.write(record); err != nil {
		// The content of the file is now unknown: the next Append writes a new file.
		err = errors.Join(fmt.Errorf("write the journal: %w", err), j.file.Close())
		j.file = nil
		return err
	}
	j.state = s
	return nil
}

func (j *Journal) write(record []byte) error {
	if _, err := j.file.Write(record); err != nil {
		return err
	}
	j.size += int64(len(record))
	return j.file.Sync()
}

// rewrite replaces the file with one that contains only the current state. The
// caller holds the lock or is the only user. It doesn't use files.Write because
// the new file stays open for appending.
func (j *Journal) rewrite() error {
	record, err := frame(j.state)
	if err != nil {
		return err
	}
	name := filepath.Join(j.dir, journalName)
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	head := binary.BigEndian.AppendUint32([]byte(journalMagic), journalVersion)
	_, err = f.Write(append(head, record...))
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err == nil {
		err = files.SyncDir(j.dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the journal: %w", err), f.Close())
	}
	if j.file != nil {
		err = j.file.Close()
	}
	j.file, j.size = f, int64(headerSize+len(record))
	return err
}

// Close closes the files and releases the lock.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	if j.file != nil {
		err = j.file.Close()
		j.file = nil
	}
	if j.lock != nil {
		err = errors.Join(err, j.lock.Close())
		j.lock = nil
	}
	return err
}
