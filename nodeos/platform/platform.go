// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package platform implements the platforms of a host: its configuration, name,
// addresses and kernel arguments.
package platform

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// Config configures a platform.
type Config struct {
	// Dir is the directory of the platform's files: machine.yaml for metal and
	// container, the seed (meta-data, user-data) for nocloud.
	Dir string
	// Hostname returns the kernel's host name, as os.Hostname does.
	Hostname func() (string, error)
	// Addresses returns the addresses of the interfaces, as net.InterfaceAddrs
	// does.
	Addresses func() ([]net.Addr, error)
}

// Names returns the names of the supported platforms.
func Names() []string { return []string{"metal", "container", "nocloud"} }

// New returns the platform of that name.
func New(name string, cfg Config) (nodeos.Platform, error) {
	if cfg.Dir == "" || cfg.Hostname == nil || cfg.Addresses == nil {
		return nil, errors.New("platform: Dir, Hostname and Addresses are required")
	}
	m := machine{cfg: cfg}
	switch name {
	case "metal":
		return metal{m}, nil
	case "container":
		return container{m}, nil
	case "nocloud":
		return nocloud{m}, nil
	default:
		return nil, fmt.Errorf("unknown platform %q; want one of %s", name, strings.Join(Names(), ", "))
	}
}

// machine is the common base of the platforms.
type machine struct{ cfg Config }

// Configuration returns the content of machine.yaml, or nil without one.
func (m machine) Configuration(context.Context) ([]byte, error) { return m.file("machine.yaml") }

// file returns the content of a platform file, or nil without one.
func (m machine) file(name string) ([]byte, error) {
	data, err := files.Read(filepath.Join(m.cfg.Dir, name), maxFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// maxFile limits a platform file, in bytes.
const maxFile = 64 << 10

// Hostname returns the kernel's host name.
func (m machine) Hostname(context.Context) (string, error) { return m.cfg.Hostname() }

// ExternalIPs returns the global unicast addresses, IPv4 first, each family in
// order.
func (m machine) ExternalIPs(context.Context) ([]netip.Addr, error) {
	all, err := m.cfg.Addresses()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of the machine: %w", err)
	}
	var out []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue // not an internet address
		}
		if ip := prefix.Addr().Unmap(); ip.IsGlobalUnicast() {
			out = append(out, ip)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// metal is a machine of its own.
type metal struct{ machine }

// Name implements nodeos.Platform.
func (metal) Name() string { return "metal" }

// Mode implements nodeos.Platform.
func (metal) Mode() nodeos.Mode { return nodeos.ModeMetal }

// KernelArgs implements nodeos.Platform: a console on screen and serial line.
func (metal) KernelArgs() []string { return []string{"console=tty0", "console=ttyS0"} }

// container is a container on someone else's kernel.
type container struct{ machine }

// Name implements nodeos.Platform.
func (container) Name() string { return "container" }

// Mode implements nodeos.Platform.
func (container) Mode() nodeos.Mode { return nodeos.ModeContainer }

// KernelArgs implements nodeos.Platform: a container has no kernel of its own.
func (container) KernelArgs() []string { return nil }

// nocloud is a virtual machine with a NoCloud seed: the directory that
// cloud-init documents, with meta-data and user-data.
type nocloud struct{ machine }

// Name implements nodeos.Platform.
func (nocloud) Name() string { return "nocloud" }

// Mode implements nodeos.Platform.
func (nocloud) Mode() nodeos.Mode { return nodeos.ModeCloud }

// KernelArgs implements nodeos.Platform.
func (nocloud) KernelArgs() []string { return []string{"console=ttyS0"} }

// Configuration implements nodeos.PlatformData: the user-data, unless it's for
// cloud-init (beginning with "#cloud-config" or "#!").
func (n nocloud) Configuration(context.Context) ([]byte, error) {
	data, err := n.file("user-data")
	if err != nil {
		return nil, fmt.Errorf("read user-data of the seed: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" || strings.HasPrefix(text, "#cloud-config") || strings.HasPrefix(text, "#!") {
		return nil, nil
	}
	return data, nil
}

// Hostname implements nodeos.PlatformData: local-hostname of the seed, else the
// kernel's host name.
func (n nocloud) Hostname(ctx context.Context) (string, error) {
	data, err := n.file("meta-data")
	if err != nil {
		return "", fmt.Errorf("read meta-data of the seed: %w", err)
	}
	var meta struct {
		LocalHostname string `json:"local-hostname"`
	}
	if err := yaml.Unmarshal(data, &meta); err != nil {
		return "", fmt.Errorf("read meta-data of the seed: %w", err)
	}
	if meta.LocalHostname == "" {
		return n.machine.Hostname(ctx)
	}
	return meta.LocalHostname, nil
}

// Generic is a board without special requirements; it implements nodeos.Board.
type Generic struct{}

var _ nodeos.Board = Generic{}

// Name implements nodeos.Board.
func (Generic) Name() string { return "generic" }

// Install implements nodeos.Board. The image already contains the boot files; it
// only checks that the disk exists.
func (Generic) Install(disk string) error {
	if _, err := os.Stat(disk); err != nil {
		return fmt.Errorf("install on a generic board: %w", err)
	}
	return nil
}

// KernelArgs implements nodeos.Board.
func (Generic) KernelArgs() []string { return nil }

// PartitionOptions implements nodeos.Board.
func (Generic) PartitionOptions() *nodeos.PartitionOptions { return nil }
