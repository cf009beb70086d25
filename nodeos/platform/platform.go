// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package platform says where a host runs: what configuration, name,
// addresses and kernel arguments the surroundings give it.
package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Config is what a platform takes from the machine.
type Config struct {
	// Dir is where the platform's files are: machine.yaml for metal and
	// container, the seed (meta-data, user-data) for nocloud.
	Dir string
	// Hostname returns the kernel's host name; os.Hostname does.
	Hostname func() (string, error)
	// Addresses returns the addresses of the interfaces; net.InterfaceAddrs
	// does.
	Addresses func() ([]net.Addr, error)
}

// Names lists the platforms that New knows.
func Names() []string { return []string{"metal", "container", "nocloud"} }

// New returns the platform of that name.
func New(name string, cfg Config) (nodeos.Platform, error) {
	if cfg.Dir == "" || cfg.Hostname == nil || cfg.Addresses == nil {
		return nil, errors.New("a platform needs a directory, a host name and addresses")
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
		return nil, fmt.Errorf("unknown platform %q; known are %s", name, strings.Join(Names(), ", "))
	}
}

// machine is what the platforms have in common: the machine says all of it.
type machine struct{ cfg Config }

// Configuration returns the file machine.yaml; nil when there is none.
func (m machine) Configuration(context.Context) ([]byte, error) { return m.file("machine.yaml") }

// file reads a file of the platform's directory; nil when there is none.
func (m machine) file(name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(m.cfg.Dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxFile)
	}
	return data, nil
}

// maxFile bounds a file of the platform.
const maxFile = 64 << 10

// Hostname returns the kernel's host name.
func (m machine) Hostname(context.Context) (string, error) { return m.cfg.Hostname() }

// ExternalIPs returns the global unicast addresses, IPv4 first, each family
// in order; a machine that has none but loopback has none.
func (m machine) ExternalIPs(context.Context) ([]netip.Addr, error) {
	all, err := m.cfg.Addresses()
	if err != nil {
		return nil, fmt.Errorf("addresses of the machine: %w", err)
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

// KernelArgs implements nodeos.Platform: the kernel is not ours.
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

// Configuration implements nodeos.PlatformData: user-data, when it's ours.
// What is for cloud-init (it begins with "#cloud-config" or "#!") is not.
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

// Hostname implements nodeos.PlatformData: the seed's local-hostname, else
// the kernel's.
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

// Generic is a board that needs nothing of its own; it implements
// nodeos.Board.
type Generic struct{}

var _ nodeos.Board = Generic{}

// Name implements nodeos.Board.
func (Generic) Name() string { return "generic" }

// Install implements nodeos.Board: the firmware of a generic board finds the
// boot files where the image has them. It only checks that the disk is there.
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
