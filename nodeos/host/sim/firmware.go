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

// Create makes a machine in a directory, with content as the good system of
// slot A and an empty slot B. A machine that is there already is left as it
// is.
func Create(dir string, image nodeos.Image, content []byte) error {
	d := disk{dir: dir, power: func(string) error { return nil }}
	if _, err := os.Stat(d.path("boot.json")); err == nil {
		return nil
	}
	if got := Digest(content); got != image.ContentDigest {
		return fmt.Errorf("create the machine: content is %s, the image says %s", got, image.ContentDigest)
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

// BootOptions are what a boot takes from outside.
type BootOptions struct {
	// Sleep passes boot time and returns early with an error when ctx ends;
	// nil passes none.
	Sleep func(ctx context.Context, d time.Duration) error
	// Watchdog is how long a hanging boot takes to be reset.
	Watchdog time.Duration
	// NewID mints boot ids; nil means random ones.
	NewID func() string
}

// BootResult is the system that a boot brought up.
type BootResult struct {
	// BootID is the new boot's.
	BootID string
	// Slot and Image are what runs.
	Slot string
	// Image is what runs.
	Image nodeos.Image
	// Document is the image's own word.
	Document Document
	// Faults are the running system's and the machine's together.
	Faults Faults
	// Failed counts the boots before this one that never got to the agent.
	Failed int
}

// maxBoots bounds the boots of one power-on: more means that nothing boots.
const maxBoots = 16

// Boot plays the firmware: it chooses the slot, counts a try, and resets the
// machine as long as what it chose doesn't come up. It returns when a system
// runs, and an error when none does any more.
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
			return r, d.up(r)
		}
		last = err
		if err := o.Sleep(ctx, o.Watchdog); err != nil {
			return BootResult{}, err
		}
	}
	return BootResult{}, fmt.Errorf("nothing boots any more: %w", last)
}

// newBootID mints a random boot id in the shape of the kernel's.
func newBootID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, says its documentation
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// bootOnce is one boot: choose, count, start.
func (d disk) bootOnce(o BootOptions) (BootResult, error) {
	c, err := d.read()
	if err != nil {
		return BootResult{}, err
	}
	name := choose(&c)
	c.BootID, c.Booted = o.NewID(), name
	c.Boots++
	if err := d.write(c); err != nil { // counted before it's tried
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
	if slot.State == nodeos.SlotGood { // a machine's fault spares what was good
		r.Faults.HangAtBoot = doc.Faults.HangAtBoot
	}
	if r.Faults.HangAtBoot {
		return BootResult{}, fmt.Errorf("%s %s in slot %s hangs at boot", doc.Product, doc.Version, name)
	}
	return r, nil
}

// choose picks the slot of the next boot and counts its try: an activated one
// while it has tries, else the default one.
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

// up marks the machine as running.
func (d disk) up(r BootResult) error {
	return writeSynced(d.path("run", "up"), []byte(r.BootID))
}

// powerOff wipes what doesn't outlive a boot.
func powerOff(d disk) error {
	if err := os.RemoveAll(d.path("run")); err != nil {
		return fmt.Errorf("power off: %w", err)
	}
	return os.MkdirAll(d.path("run"), 0o700)
}

// PowerOff takes the power from the machine in dir: it's down until the next
// Boot. A supervisor calls it when the agent's process is gone.
func PowerOff(dir string) error { return powerOff(disk{dir: dir}) }

// Status is what a machine looks like from outside, for whoever plays its
// kubelet.
type Status struct {
	// Up reports that a system runs.
	Up bool
	// BootID is the current boot's.
	BootID string
	// Image and Document are the running system's.
	Image nodeos.Image
	// Document is the running system's own word.
	Document Document
	// ServicesStopped reports that the kubelet is stopped.
	ServicesStopped bool
	// Healthy is the result of the system's own checks.
	Healthy bool
	// NoNetwork reports that nobody reaches it.
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

// exists reports whether a file of the machine is there.
func (d disk) exists(parts ...string) (bool, error) {
	_, err := os.Stat(d.path(parts...))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
