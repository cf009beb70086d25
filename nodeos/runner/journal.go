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
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// The journal's format. A file is a header and records. The header is the
// magic and the version, four bytes, big endian. A record is the length of
// its body and the body's CRC-32C, four bytes each, big endian, and the body:
// a whole State as JSON. So the last valid record is all that counts, a torn
// one at the end is what a crash leaves, and a damaged one in the middle costs
// nothing.
const (
	journalMagic   = "LOCKSTEPJOURNAL\n"
	journalVersion = 1
	// journalOldest and journalNewest are the versions that this one reads:
	// the previous one, once there is one, and the next one, whose states may
	// have fields that are unknown here.
	journalOldest = 1
	journalNewest = journalVersion + 1

	headerSize  = len(journalMagic) + 4
	frameSize   = 8
	maxRecord   = 512 << 10
	maxJournal  = 16 << 20
	compactSize = 1 << 20

	journalName = "journal"
)

// ErrJournal says that a journal can't be read: it's none, or of a version
// that this agent doesn't know.
var ErrJournal = errors.New("not a journal that this agent reads")

// Journal is a host's memory on disk. Its methods may be called from several
// goroutines; two processes can't open the same one.
type Journal struct {
	dir     string
	mu      sync.Mutex
	file    *os.File
	lock    *os.File
	size    int64
	state   State
	damaged int
}

// OpenJournal opens the journal in a directory, or begins one with a new
// installation id. What a crash left half written is cut off.
func OpenJournal(dir string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the journal's directory: %w", err)
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

// lockFile keeps other processes out until the file is closed.
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

// load reads the file and opens it for appending; without one it begins one.
func (j *Journal) load() error {
	name := filepath.Join(j.dir, journalName)
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		j.state = State{InstallationID: rand.Text()}
		return j.rewrite()
	}
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxJournal+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	got, err := ReadJournal(data)
	if err != nil {
		return fmt.Errorf("read the journal %s: %w", name, err)
	}
	j.state, j.damaged = got.State, got.Damaged
	if got.State.InstallationID == "" {
		// It was begun and its first record never got to the disk.
		j.state.InstallationID = rand.Text()
	}
	return j.rewrite()
}

// Contents is what a journal's bytes say.
type Contents struct {
	// State is the last valid record's; zero without one.
	State State
	// Records counts the valid records, Damaged the others that were passed
	// over; Torn says that the last one was cut short.
	Records int
	// Damaged counts records whose checksum or body is wrong.
	Damaged int
	// Torn says that the file ends within a record.
	Torn bool
}

// ReadJournal reads a journal's bytes. Only a foreign file or a foreign
// version is an error.
func ReadJournal(data []byte) (Contents, error) {
	var c Contents
	if len(data) > maxJournal {
		return c, fmt.Errorf("%w: it has more than %d bytes", ErrJournal, maxJournal)
	}
	if len(data) < headerSize {
		if !bytes.HasPrefix(append([]byte(journalMagic), 0, 0, 0, journalVersion), data) {
			return c, fmt.Errorf("%w: it doesn't begin with %q", ErrJournal, journalMagic)
		}
		c.Torn = true
		return c, nil
	}
	if string(data[:len(journalMagic)]) != journalMagic {
		return c, fmt.Errorf("%w: it doesn't begin with %q", ErrJournal, journalMagic)
	}
	if v := binary.BigEndian.Uint32(data[len(journalMagic):]); v < journalOldest || v > journalNewest {
		return c, fmt.Errorf("%w: version is %d, want %d to %d", ErrJournal, v, journalOldest, journalNewest)
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

// record reads one record and returns its size; false ends the reading.
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

// check says whether the core can work with a state that was read.
func (s State) check() error {
	if op := s.Op; op != nil && (op.Index < 0 || op.Index >= len(op.Plan)) {
		return fmt.Errorf("operation %s is at phase %d of %d", op.ID, op.Index+1, len(op.Plan))
	}
	if s.Op == nil && s.Next != nil {
		return errors.New("an operation waits for none")
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
		return nil, fmt.Errorf("the journal's record has %d bytes, at most %d are taken", len(body), maxRecord)
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

// StartIn is which start of the agent in that boot the next Serve is, from 1.
func (j *Journal) StartIn(bootID string) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state.BootID != bootID {
		return 1
	}
	return j.state.Starts + 1
}

// Damaged is how many records were unreadable when the journal was opened.
func (j *Journal) Damaged() int { return j.damaged }

// Append makes s the last state: it's on disk when Append returns nil.
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
		// What is on disk now is unknown: begin a new file with the next try.
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

// rewrite puts a new file with the state alone in the old one's place; the
// lock is held, or nobody else has the journal yet.
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
		err = syncDir(j.dir)
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

// syncDir makes a rename in a directory last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Close closes the files and lets another process open the journal.
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
