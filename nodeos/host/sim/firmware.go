// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Create creates a machine in a directory, with content as the good OS of slot A
// and an empty slot B. An existing machine is unchanged.
func Create(dir string, image nodeos.Image, content []byte) error {
	d := disk{dir: dir, power: func(string) error { return nil }}
	if _, err := os.Stat(d.path("boot.json")); err == nil {
		return nil
	}
	if got := Digest(content); got != image.ContentDigest {
		return fmt.Errorf("create the machine: content digest is %s, want %s", got, image.ContentDigest)
	}
	if _, err := ParseDocument(content); err != nil {
		return fmt.Errorf("create the machine: %w", err)
	}
	for _, name := range slotNames() {
		if err := os.MkdirAll(d.path("slots", name), 0o700); err != nil {
			return fmt.Errorf("create the machine: %w", err)
		}
	}
	if err := writeSynced(d.image("A"), content); err != nil {
		return fmt.Errorf("create the machine: %w", err)
	}
	return d.write(bootConfig{
		Format: bootFormat, Default: "A",
		Slots: map[string]nodeos.Slot{
			"A": {Name: "A", State: nodeos.SlotGood, Device: d.image("A"), Image: image},
			"B": {Name: "B", State: nodeos.SlotEmpty, Device: d.image("B")},
		},
	})
}

// BootOptions are the options of Boot.
type BootOptions struct {
	// Sleep simulates boot time and returns an error when ctx ends early; nil
	// skips it.
	Sleep func(ctx context.Context, d time.Duration) error
	// Watchdog is the time after which a hanging boot is reset.
	Watchdog time.Duration
	// NewID generates boot ids; nil means random ones.
	NewID func() string
}

// BootResult is the booted OS.
type BootResult struct {
	// BootID is the new boot id.
	BootID string
	// Slot is the booted slot.
	Slot string
	// Image is the booted image.
	Image nodeos.Image
	// Document is the content of the image.
	Document Document
	// Faults are the combined faults of the OS and the machine.
	Faults Faults
	// Failed is the number of preceding boots that failed to start the agent.
	Failed int
}

// maxBoots limits the boots per power-on: more means that no slot boots.
const maxBoots = 16

// Boot implements the firmware: it selects the slot, counts a try, and resets the
// machine until an OS boots. It returns the booted OS, or an error if none boots.
func Boot(ctx context.Context, dir string, o BootOptions) (BootResult, error) {
	d := disk{dir: dir, power: func(string) error { return nil }}
	if o.Sleep == nil {
		o.Sleep = func(context.Context, time.Duration) error { return nil }
	}
	if o.NewID == nil {
		o.NewID = newBootID
	}
	if err := powerOff(d); err != nil {
		return BootResult{}, err
	}
	var last error
	for failed := range maxBoots {
		r, err := d.bootOnce(o)
		if err == nil {
			if err := o.Sleep(ctx, r.Document.bootTime()); err != nil {
				return r, err
			}
			r.Failed = failed
			return r, d.markUp(r)
		}
		last = err
		if err := o.Sleep(ctx, o.Watchdog); err != nil {
			return BootResult{}, err
		}
	}
	return BootResult{}, fmt.Errorf("no slot boots: %w", last)
}

// newBootID returns a random boot id in the kernel's format.
func newBootID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, as documented
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// bootOnce makes one boot: select the slot, count the try, start.
func (d disk) bootOnce(o BootOptions) (BootResult, error) {
	c, err := d.read()
	if err != nil {
		return BootResult{}, err
	}
	name := choose(&c)
	c.BootID, c.Booted = o.NewID(), name
	c.Boots++
	if err := d.write(c); err != nil { // count the try before it starts
		return BootResult{}, err
	}
	slot := c.Slots[name]
	doc, err := d.load(slot)
	if err != nil {
		return BootResult{}, err
	}
	machine, err := d.faults()
	if err != nil {
		return BootResult{}, err
	}
	r := BootResult{BootID: c.BootID, Slot: name, Image: slot.Image, Document: doc, Faults: machine.merge(doc.Faults)}
	if slot.State == nodeos.SlotGood { // machine faults don't apply to a good slot
		r.Faults.HangAtBoot = doc.Faults.HangAtBoot
	}
	if r.Faults.HangAtBoot {
		return BootResult{}, fmt.Errorf("%s %s in slot %s hangs at boot", doc.Product, doc.Version, name)
	}
	return r, nil
}

// choose selects the slot of the next boot and counts its try: an activated slot
// that has tries left, else the default one.
func choose(c *bootConfig) string {
	for _, name := range slotNames() {
		s := c.Slots[name]
		if s.State != nodeos.SlotTrying || !s.NextBoot {
			continue
		}
		if s.TriesLeft > 0 {
			s.TriesLeft--
			c.Slots[name] = s
			return name
		}
		s.State, s.NextBoot = nodeos.SlotBad, false
		c.Slots[name] = s
	}
	return c.Default
}

// markUp marks the machine as running.
func (d disk) markUp(r BootResult) error {
	return writeSynced(d.path("run", "up"), []byte(r.BootID))
}

// powerOff removes the state of the boot.
func powerOff(d disk) error {
	if err := os.RemoveAll(d.path("run")); err != nil {
		return fmt.Errorf("power off: %w", err)
	}
	return os.MkdirAll(d.path("run"), 0o700)
}

// PowerOff powers off the machine in dir until the next Boot. A supervisor calls
// it when the agent's process has ended.
func PowerOff(dir string) error { return powerOff(disk{dir: dir}) }

// Status is the externally visible state of a machine, for a simulated kubelet.
type Status struct {
	// Up means that an OS is running.
	Up bool
	// BootID is the current boot id.
	BootID string
	// Image is the running image.
	Image nodeos.Image
	// Document is the content of the running image.
	Document Document
	// ServicesStopped means that the kubelet is stopped.
	ServicesStopped bool
	// Healthy is the result of the OS health checks.
	Healthy bool
	// NoNetwork means that the machine is unreachable.
	NoNetwork bool
}

// Inspect returns the status of the machine in dir.
func Inspect(dir string) (Status, error) {
	d := disk{dir: dir}
	c, err := d.read()
	if err != nil {
		return Status{}, err
	}
	slot, ok := c.Slots[c.Booted]
	if !ok {
		return Status{}, nil
	}
	doc, err := d.load(slot)
	if err != nil {
		return Status{}, err
	}
	f, err := d.faults()
	if err != nil {
		return Status{}, err
	}
	f = f.merge(doc.Faults)
	s := Status{
		BootID: c.BootID, Image: slot.Image, Document: doc,
		Healthy: doc.healthy() && !f.Unhealthy, NoNetwork: f.NoNetwork,
	}
	if s.Up, err = d.exists("run", "up"); err != nil {
		return Status{}, err
	}
	s.ServicesStopped, err = d.exists("run", "services.stopped")
	return s, err
}

// exists reports whether a file of the machine exists.
func (d disk) exists(parts ...string) (bool, error) {
	_, err := os.Stat(d.path(parts...))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
