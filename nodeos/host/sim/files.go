// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// ErrPowerLoss means that power was lost before a write; nothing after it happened.
var ErrPowerLoss = errors.New("power loss")

// Points returns the writes before which power can be lost, in the order of an
// upgrade.
func Points() []string {
	return []string{
		"stage:begin", "stage:write", "stage:sync", "stage:rename",
		"record:write", "record:rename",
	}
}

// bootConfig is the boot configuration.
type bootConfig struct {
	// Format is the file's version.
	Format int `json:"format"`
	// Default is the slot that boots unless another one is tried.
	Default string `json:"default"`
	// BootID, Booted and Boots describe the current boot.
	BootID string `json:"bootID,omitempty"`
	Booted string `json:"booted,omitempty"`
	Boots  int    `json:"boots,omitempty"`
	// Slots are the slots by name.
	Slots map[string]nodeos.Slot `json:"slots"`
}

// bootFormat is the version of boot.json.
const bootFormat = 1

// maxConfig limits boot.json and faults.json, in bytes.
const maxConfig = 1 << 20

// slotNames returns the names of the slots.
func slotNames() []string { return []string{"A", "B"} }

// other returns the other slot.
func other(name string) string {
	if name == "A" {
		return "B"
	}
	return "A"
}

// disk is the machine's directory with injected power losses.
type disk struct {
	dir string
	// power is called with the name of each write before it; an error is a power
	// loss.
	power func(point string) error
}

func (d disk) path(parts ...string) string {
	return filepath.Join(append([]string{d.dir}, parts...)...)
}

func (d disk) image(slot string) string { return d.path("slots", slot, "image") }

// read returns the boot configuration.
func (d disk) read() (bootConfig, error) {
	var c bootConfig
	if err := readJSON(d.path("boot.json"), &c); err != nil {
		return c, fmt.Errorf("read the boot configuration: %w", err)
	}
	if c.Format != bootFormat {
		return c, fmt.Errorf("boot configuration: format is %d, want %d", c.Format, bootFormat)
	}
	for _, name := range slotNames() {
		if _, ok := c.Slots[name]; !ok {
			return c, fmt.Errorf("boot configuration: slot %s is missing", name)
		}
	}
	return c, nil
}

// write replaces the boot configuration atomically. It doesn't use files.Write so
// that power losses can be injected between its steps.
func (d disk) write(c bootConfig) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the boot configuration: %w", err)
	}
	if err := d.power("record:write"); err != nil {
		// A power loss leaves a torn temporary file.
		return errors.Join(err, os.WriteFile(d.path("boot.json.new"), data[:len(data)/2], 0o600))
	}
	if err := writeSynced(d.path("boot.json.new"), data); err != nil {
		return fmt.Errorf("write the boot configuration: %w", err)
	}
	if err := d.power("record:rename"); err != nil {
		return err
	}
	if err := os.Rename(d.path("boot.json.new"), d.path("boot.json")); err != nil {
		return fmt.Errorf("write the boot configuration: %w", err)
	}
	return files.SyncDir(d.dir)
}

// writeSynced writes a file and syncs it.
func writeSynced(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// readJSON reads a bounded JSON file.
func readJSON(name string, into any) error {
	data, err := files.Read(name, maxConfig)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// faults reads faults.json; a missing file means no faults.
func (d disk) faults() (Faults, error) {
	var f Faults
	err := readJSON(d.path("faults.json"), &f)
	if errors.Is(err, os.ErrNotExist) {
		return Faults{}, nil
	}
	if err != nil {
		return Faults{}, fmt.Errorf("read the faults: %w", err)
	}
	return f, nil
}

// SetFaults writes faults.json of the machine in dir; empty faults remove it.
func SetFaults(dir string, f Faults) error {
	name := filepath.Join(dir, "faults.json")
	if f == (Faults{}) {
		err := os.Remove(name)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	data, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode the faults: %w", err)
	}
	if err := files.Write(name, data, 0o600); err != nil {
		return fmt.Errorf("write the faults: %w", err)
	}
	return nil
}

// load returns the document in a slot after it verified its content digest.
func (d disk) load(s nodeos.Slot) (Document, error) {
	data, err := os.ReadFile(d.image(s.Name))
	if err != nil {
		return Document{}, fmt.Errorf("read slot %s: %w", s.Name, err)
	}
	if got := Digest(data); got != s.Image.ContentDigest {
		return Document{}, fmt.Errorf("slot %s: content digest is %s, want %s", s.Name, got, s.Image.ContentDigest)
	}
	return ParseDocument(data)
}
