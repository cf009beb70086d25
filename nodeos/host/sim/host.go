// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// Config configures a Host.
type Config struct {
	// Dir is the machine's directory.
	Dir string
	// Tries is the number of boot tries of an activated slot; 0 means DefaultTries.
	Tries int
	// Capacity is the size of a slot in bytes; 0 means 256 MiB.
	Capacity int64
	// PowerCut ends the process immediately at an injected power loss; nil makes the
	// write return ErrPowerLoss.
	PowerCut func()
	// Power, if set, is called before each write; an error is a power loss. Tests
	// count writes and inject power losses with it.
	Power func(point string) error
}

// Host is the running machine from the perspective of its agent; it implements
// nodeos.Host.
type Host struct {
	cfg  Config
	disk disk
	mu   sync.Mutex // serializes changes of the disk
}

var _ nodeos.Host = (*Host)(nil)

// Open returns the machine in a directory prepared by Create and Boot.
func Open(cfg Config) (*Host, error) {
	if cfg.Tries == 0 {
		cfg.Tries = DefaultTries
	}
	if cfg.Capacity == 0 {
		cfg.Capacity = maxImage
	}
	h := &Host{cfg: cfg}
	h.disk = disk{dir: cfg.Dir, power: h.power}
	c, err := h.disk.read()
	if err != nil {
		return nil, err
	}
	if c.BootID == "" {
		return nil, fmt.Errorf("open the machine in %s: never booted", cfg.Dir)
	}
	return h, nil
}

// power calls the injected power function, or applies faults.json.
func (h *Host) power(point string) error {
	if h.cfg.Power != nil {
		return h.cfg.Power(point)
	}
	f, err := h.disk.faults()
	if err != nil || f.PowerLossAt != point {
		return err
	}
	f.PowerLossAt = "" // once
	if err := SetFaults(h.cfg.Dir, f); err != nil {
		return err
	}
	if h.cfg.PowerCut != nil {
		h.cfg.PowerCut()
	}
	return ErrPowerLoss
}

// Inspect implements nodeos.Inspector.
func (h *Host) Inspect(context.Context) (nodeos.Inventory, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, err := h.disk.read()
	if err != nil {
		return nodeos.Inventory{}, err
	}
	booted := c.Slots[c.Booted]
	doc, err := h.disk.load(booted)
	if err != nil {
		return nodeos.Inventory{}, err
	}
	stopped, err := h.disk.exists("run", "services.stopped")
	if err != nil {
		return nodeos.Inventory{}, err
	}
	inv := nodeos.Inventory{
		Backend:      "sim",
		Capabilities: nodeos.HostCapabilities{Atomic: true, BootOnce: true, AutoRollback: true, Verify: true},
		BootID:       c.BootID, FreeBytes: h.cfg.Capacity, ServicesStopped: stopped,
		Booted: nodeos.Booted{
			Slot: c.Booted, Product: doc.Product, Version: doc.Version, Digest: booted.Image.Ref.Digest,
			Confirmed: booted.State == nodeos.SlotGood, KubeletVersion: doc.KubeletVersion,
		},
	}
	for _, name := range slotNames() {
		inv.Slots = append(inv.Slots, c.Slots[name])
	}
	return inv, nil
}

// Health implements nodeos.Inspector.
func (h *Host) Health(context.Context) error {
	s, err := Inspect(h.cfg.Dir)
	switch {
	case err != nil:
		return err
	case !s.Healthy:
		return fmt.Errorf("%s %s is unhealthy", s.Document.Product, s.Document.Version)
	case s.ServicesStopped:
		return errors.New("services are stopped")
	default:
		return nil
	}
}

// change reads the boot configuration, lets f change it, and writes it if f returns
// true.
func (h *Host) change(f func(c *bootConfig) (bool, error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, err := h.disk.read()
	if err != nil {
		return err
	}
	changed, err := f(&c)
	if err != nil || !changed {
		return err
	}
	return h.disk.write(c)
}

// Stage implements nodeos.Stager.
func (h *Host) Stage(ctx context.Context, image nodeos.Image, content io.Reader) (nodeos.Slot, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, err := h.disk.read()
	if err != nil {
		return nodeos.Slot{}, err
	}
	if c.Slots[c.Booted].State != nodeos.SlotGood {
		return nodeos.Slot{}, nodeos.Refuse("Unconfirmed", "running slot %s is not committed: commit it or roll it back first", c.Booted)
	}
	slot := c.Slots[other(c.Booted)]
	if slot.State == nodeos.SlotStaged || slot.State == nodeos.SlotTrying {
		if slot.Image == image {
			if _, err := h.disk.load(slot); err == nil {
				return slot, nil
			}
		}
	}
	if image.Size > h.cfg.Capacity {
		return nodeos.Slot{}, nodeos.Refuse("NoSpace", "image has %d bytes, slot %s has a capacity of %d", image.Size, slot.Name, h.cfg.Capacity)
	}
	if c.Default == slot.Name {
		// A rollback is pending its reboot.
		return nodeos.Slot{}, nodeos.Refuse("NextBoot", "slot %s boots next: reboot first", slot.Name)
	}
	if err := h.disk.power("stage:begin"); err != nil {
		return nodeos.Slot{}, err
	}
	slot = nodeos.Slot{Name: slot.Name, State: nodeos.SlotEmpty, Device: slot.Device}
	c.Slots[slot.Name] = slot
	if err := h.disk.write(c); err != nil { // the slot isn't bootable from here on
		return nodeos.Slot{}, err
	}
	if err := h.fill(ctx, slot, image, content); err != nil {
		return nodeos.Slot{}, err
	}
	slot.State, slot.Image = nodeos.SlotStaged, image
	c.Slots[slot.Name] = slot
	return slot, h.disk.write(c)
}

// fill writes content to a slot, syncs it, reads it back and compares the digest.
func (h *Host) fill(ctx context.Context, slot nodeos.Slot, image nodeos.Image, content io.Reader) error {
	part := h.disk.image(slot.Name) + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write slot %s: %w", slot.Name, err)
	}
	err = h.copyImage(ctx, f, image, content)
	if err == nil {
		err = h.disk.power("stage:sync")
	}
	if err == nil {
		err = errors.Join(h.corrupt(f, image), f.Sync())
	}
	if err == nil {
		err = readBack(f, image)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write slot %s: %w", slot.Name, err)
	}
	if err := h.disk.power("stage:rename"); err != nil {
		return err
	}
	if err := os.Rename(part, h.disk.image(slot.Name)); err != nil {
		return fmt.Errorf("write slot %s: %w", slot.Name, err)
	}
	return files.SyncDir(h.disk.path("slots", slot.Name))
}

// copyImage copies content, at most one byte more than the image's size.
func (h *Host) copyImage(ctx context.Context, f io.Writer, image nodeos.Image, content io.Reader) error {
	half := image.Size / 2
	if _, err := io.CopyN(f, reader{ctx, content}, half); err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	if err := h.disk.power("stage:write"); err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(reader{ctx, content}, image.Size-half+1))
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	if half+n != image.Size {
		return fmt.Errorf("image has at least %d bytes, want %d", half+n, image.Size)
	}
	return nil
}

// reader stops with its context.
type reader struct {
	ctx context.Context //nolint:containedctx // used for one copy.
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// corrupt injects CorruptStage.
func (h *Host) corrupt(f *os.File, image nodeos.Image) error {
	faults, err := h.disk.faults()
	if err != nil || !faults.CorruptStage {
		return err
	}
	_, err = f.WriteAt([]byte{0xff}, image.Size/2)
	return err
}

// readBack compares the written bytes with the verified digest.
func readBack(f io.ReadSeeker, image nodeos.Image) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return fmt.Errorf("read the slot back: %w", err)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != image.ContentDigest {
		return fmt.Errorf("read the slot back: digest is %s, want %s; the disk may be faulty", got, image.ContentDigest)
	}
	return nil
}

// SetNextBoot implements nodeos.BootSwitch.
func (h *Host) SetNextBoot(_ context.Context, digest string) error {
	return h.change(func(c *bootConfig) (bool, error) {
		s := c.Slots[other(c.Booted)]
		if s.Image.Ref.Digest != digest || (s.State != nodeos.SlotStaged && s.State != nodeos.SlotTrying) {
			if b := c.Slots[c.Booted]; b.State == nodeos.SlotTrying && b.Image.Ref.Digest == digest {
				return false, nil // it's already running
			}
			return false, fmt.Errorf("slot %s is %s with digest %q, want %s staged", s.Name, s.State, s.Image.Ref.Digest, digest)
		}
		if s.State == nodeos.SlotTrying && s.NextBoot {
			return false, nil
		}
		s.State, s.NextBoot, s.TriesLeft = nodeos.SlotTrying, true, h.cfg.Tries
		c.Slots[s.Name] = s
		return true, nil
	})
}

// ClearNextBoot implements nodeos.BootSwitch.
func (h *Host) ClearNextBoot(context.Context) error {
	return h.change(func(c *bootConfig) (bool, error) {
		s := c.Slots[other(c.Booted)]
		if s.State != nodeos.SlotTrying {
			return false, nil
		}
		s.State, s.NextBoot, s.TriesLeft = nodeos.SlotStaged, false, 0
		c.Slots[s.Name] = s
		return true, nil
	})
}

// KeepTry implements nodeos.BootSwitch.
func (h *Host) KeepTry(context.Context) error {
	return h.change(func(c *bootConfig) (bool, error) {
		s := c.Slots[c.Booted]
		if s.State != nodeos.SlotTrying || s.TriesLeft >= h.cfg.Tries-1 {
			return false, nil
		}
		s.TriesLeft = h.cfg.Tries - 1
		c.Slots[s.Name] = s
		return true, nil
	})
}

// Commit implements nodeos.BootSwitch.
func (h *Host) Commit(_ context.Context, digest string) error {
	return h.change(func(c *bootConfig) (bool, error) {
		s := c.Slots[c.Booted]
		switch {
		case s.Image.Ref.Digest != digest:
			return false, fmt.Errorf("slot %s runs %s, cannot commit %s", s.Name, s.Image.Ref.Digest, digest)
		case s.State == nodeos.SlotGood && c.Default == s.Name:
			return false, nil
		case s.State != nodeos.SlotTrying && s.State != nodeos.SlotGood:
			return false, fmt.Errorf("slot %s is %s, cannot commit it", s.Name, s.State)
		}
		s.State, s.NextBoot, s.TriesLeft = nodeos.SlotGood, false, 0
		c.Slots[s.Name], c.Default = s, s.Name
		return true, nil
	})
}

// Restore implements nodeos.BootSwitch.
func (h *Host) Restore(context.Context) (nodeos.Slot, error) {
	var to nodeos.Slot
	err := h.change(func(c *bootConfig) (bool, error) {
		to = c.Slots[other(c.Booted)]
		if to.State != nodeos.SlotGood {
			return false, nodeos.Refuse("NoPrevious", "slot %s is %s: no good OS to roll back to", to.Name, to.State)
		}
		running := c.Slots[c.Booted]
		changed := c.Default != to.Name
		c.Default = to.Name
		if running.State == nodeos.SlotTrying {
			running.State, running.NextBoot, running.TriesLeft = nodeos.SlotBad, false, 0
			c.Slots[running.Name], changed = running, true
		}
		return changed, nil
	})
	return to, err
}

// StopServices implements nodeos.ServiceManager.
func (h *Host) StopServices(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return writeSynced(h.disk.path("run", "services.stopped"), nil)
}

// StartServices implements nodeos.ServiceManager.
func (h *Host) StartServices(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := os.Remove(h.disk.path("run", "services.stopped"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Restart implements nodeos.Power: the machine is down afterwards, and the process
// must exit.
func (h *Host) Restart(_ context.Context, cmd nodeos.RebootCommand) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := os.Remove(h.disk.path("run", "up")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("restart: %w", err)
	}
	return nodeos.RebootError{Cmd: cmd}
}

// Wipers implements nodeos.Stager: the inactive slot and the data directory.
func (h *Host) Wipers(context.Context) ([]nodeos.PartitionTarget, error) {
	return []nodeos.PartitionTarget{
		wiper{name: "inactive-slot", wipe: h.wipeInactive},
		wiper{name: "data", wipe: func() error { return os.RemoveAll(h.disk.path("data")) }},
	}, nil
}

func (h *Host) wipeInactive() error {
	return h.change(func(c *bootConfig) (bool, error) {
		name := other(c.Booted)
		s := c.Slots[name]
		if c.Default == name {
			return false, nodeos.Refuse("NextBoot", "slot %s is the default and can't be wiped while slot %s is not committed", name, c.Booted)
		}
		c.Slots[name] = nodeos.Slot{Name: name, State: nodeos.SlotEmpty, Device: s.Device}
		return true, nil
	})
}

// wiper is a part of the machine that a reset can wipe.
type wiper struct {
	name string
	wipe func() error
}

func (w wiper) String() string { return w.name }
func (w wiper) Format() error  { return w.wipe() }
