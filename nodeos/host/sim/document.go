// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// maxImage is the largest image that a machine takes.
const maxImage = 256 << 20

// Document is what an image of the simulated machine says.
type Document struct {
	// Product and Version name the system.
	Product string `json:"product"`
	// Version is a semantic version.
	Version string `json:"version"`
	// KubeletVersion and OSImage are what the node reports.
	KubeletVersion string `json:"kubeletVersion,omitempty"`
	// OSImage is the node's osImage.
	OSImage string `json:"osImage,omitempty"`
	// Healthy is the result of the system's own checks; missing means true.
	Healthy *bool `json:"healthy,omitempty"`
	// BootSeconds is how long it takes to boot.
	BootSeconds float64 `json:"bootSeconds,omitempty"`
	// Faults are what is wrong with the image.
	Faults Faults `json:"faults,omitzero"`
	// Padding makes an image larger.
	Padding string `json:"padding,omitempty"`
}

// Faults are what goes wrong, said by an image or by the file faults.json of
// a machine.
type Faults struct {
	// HangAtBoot never gets to the agent: the watchdog resets the machine.
	HangAtBoot bool `json:"hangAtBoot,omitempty"`
	// Unhealthy boots, and its checks fail.
	Unhealthy bool `json:"unhealthy,omitempty"`
	// NoNetwork boots, and nobody reaches the agent.
	NoNetwork bool `json:"noNetwork,omitempty"`
	// CorruptStage changes a byte after it was written.
	CorruptStage bool `json:"corruptStage,omitempty"`
	// PowerLossAt names the write before which the power goes, once: see
	// Points. Only in faults.json.
	PowerLossAt string `json:"powerLossAt,omitempty"`
}

// merge adds the faults of f to those of the image.
func (f Faults) merge(image Faults) Faults {
	return Faults{
		HangAtBoot: f.HangAtBoot || image.HangAtBoot, Unhealthy: f.Unhealthy || image.Unhealthy,
		NoNetwork: f.NoNetwork || image.NoNetwork, CorruptStage: f.CorruptStage || image.CorruptStage,
		PowerLossAt: f.PowerLossAt,
	}
}

// ParseDocument reads an image. Trailing bytes and unknown fields are errors,
// so that a torn image never boots.
func ParseDocument(data []byte) (Document, error) {
	var d Document
	if len(data) > maxImage {
		return d, fmt.Errorf("image has more than %d bytes", maxImage)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return d, fmt.Errorf("image is no system of the simulated machine: %w", err)
	}
	if dec.More() {
		return d, errors.New("image is no system of the simulated machine: it goes on after its end")
	}
	if d.Product == "" {
		return d, errors.New("image names no product")
	}
	if _, err := nodeos.CompareVersions(d.Version, d.Version); err != nil {
		return d, fmt.Errorf("image %s: %w", d.Product, err)
	}
	if d.BootSeconds < 0 || d.BootSeconds > 3600 {
		return d, fmt.Errorf("image %s boots for %g seconds, want 0 to 3600", d.Product, d.BootSeconds)
	}
	return d, nil
}

// healthy is the result of the system's own checks.
func (d Document) healthy() bool { return d.Healthy == nil || *d.Healthy }

// bootTime is how long the system boots.
func (d Document) bootTime() time.Duration {
	return time.Duration(d.BootSeconds * float64(time.Second))
}

// Digest returns the digest of bytes, as nodeos writes digests.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ImageOf returns the image that content is, taken by itself: its digest is
// the content's.
func ImageOf(repository string, content []byte) (nodeos.Image, error) {
	d, err := ParseDocument(content)
	if err != nil {
		return nodeos.Image{}, err
	}
	digest := Digest(content)
	return nodeos.Image{
		Ref: nodeos.ImageRef{Repository: repository, Digest: digest}, Product: d.Product, Version: d.Version,
		ContentDigest: digest, Size: int64(len(content)),
	}, nil
}
