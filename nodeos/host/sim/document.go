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

// maxImage is the maximum size of an image, in bytes.
const maxImage = 256 << 20

// Document is the content of an image.
type Document struct {
	// Product is the product of the OS.
	Product string `json:"product"`
	// Version is a semantic version.
	Version string `json:"version"`
	// KubeletVersion is the kubelet version that the node reports.
	KubeletVersion string `json:"kubeletVersion,omitempty"`
	// OSImage is the osImage that the node reports.
	OSImage string `json:"osImage,omitempty"`
	// Healthy is the result of the OS health checks; missing means true.
	Healthy *bool `json:"healthy,omitempty"`
	// BootSeconds is the boot time in seconds.
	BootSeconds float64 `json:"bootSeconds,omitempty"`
	// Faults are the faults of the image.
	Faults Faults `json:"faults,omitzero"`
	// Padding increases the size of the image.
	Padding string `json:"padding,omitempty"`
}

// Faults are faults to inject, from an image or from the file faults.json of a
// machine.
type Faults struct {
	// HangAtBoot never starts the agent: the watchdog resets the machine.
	HangAtBoot bool `json:"hangAtBoot,omitempty"`
	// Unhealthy boots, but its health checks fail.
	Unhealthy bool `json:"unhealthy,omitempty"`
	// NoNetwork boots, but the agent is unreachable.
	NoNetwork bool `json:"noNetwork,omitempty"`
	// CorruptStage changes a byte after the write.
	CorruptStage bool `json:"corruptStage,omitempty"`
	// PowerLossAt is the write before which power is lost, once: see Points. It's
	// only supported in faults.json.
	PowerLossAt string `json:"powerLossAt,omitempty"`
}

// merge combines the faults of the machine and the image.
func (f Faults) merge(image Faults) Faults {
	return Faults{
		HangAtBoot: f.HangAtBoot || image.HangAtBoot, Unhealthy: f.Unhealthy || image.Unhealthy,
		NoNetwork: f.NoNetwork || image.NoNetwork, CorruptStage: f.CorruptStage || image.CorruptStage,
		PowerLossAt: f.PowerLossAt,
	}
}

// ParseDocument parses an image. Trailing bytes and unknown fields are errors, so
// that a torn image never boots.
func ParseDocument(data []byte) (Document, error) {
	var d Document
	if len(data) > maxImage {
		return d, fmt.Errorf("image is larger than %d bytes", maxImage)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return d, fmt.Errorf("parse the image: %w", err)
	}
	if dec.More() {
		return d, errors.New("parse the image: trailing data")
	}
	if d.Product == "" {
		return d, errors.New("image has no product")
	}
	if _, err := nodeos.CompareVersions(d.Version, d.Version); err != nil {
		return d, fmt.Errorf("image %s: %w", d.Product, err)
	}
	if d.BootSeconds < 0 || d.BootSeconds > 3600 {
		return d, fmt.Errorf("image %s: bootSeconds is %g, want 0 to 3600", d.Product, d.BootSeconds)
	}
	return d, nil
}

// healthy returns the result of the OS health checks.
func (d Document) healthy() bool { return d.Healthy == nil || *d.Healthy }

// bootTime returns the boot time.
func (d Document) bootTime() time.Duration {
	return time.Duration(d.BootSeconds * float64(time.Second))
}

// Digest returns the digest of data in the format of nodeos.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ImageOf returns the image of content without a manifest: its digest is the
// content's.
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
