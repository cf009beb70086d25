// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// newPlatform returns a platform with a directory of files.
func newPlatform(t *testing.T, name string, files map[string]string) nodeos.Platform {
	t.Helper()
	dir := t.TempDir()
	for f, content := range files {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := New(name, Config{
		Dir: dir, Hostname: func() (string, error) { return "kernel-name", nil },
		Addresses: func() ([]net.Addr, error) {
			var out []net.Addr
			for _, s := range []string{"127.0.0.1/8", "fe80::1/64", "2001:db8::2/64", "10.0.0.2/24", "10.0.0.1/24", "::1/128"} {
				ip, n, err := net.ParseCIDR(s)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, &net.IPNet{IP: ip, Mask: n.Mask})
			}
			return out, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEachPlatformHasItsNameAndMode(t *testing.T) {
	for name, mode := range map[string]nodeos.Mode{
		"metal": nodeos.ModeMetal, "container": nodeos.ModeContainer, "nocloud": nodeos.ModeCloud,
	} {
		if p := newPlatform(t, name, nil); p.Name() != name || p.Mode() != mode {
			t.Errorf("platform %s: name %s, mode %s", name, p.Name(), p.Mode())
		}
	}
	if _, err := New("mainframe", Config{Dir: "/", Hostname: os.Hostname, Addresses: net.InterfaceAddrs}); err == nil {
		t.Error("an unknown platform was accepted")
	}
}

func TestExternalIPsAreTheGlobalUnicastAddressesInOrder(t *testing.T) {
	got, err := newPlatform(t, "metal", nil).ExternalIPs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::2")}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConfigurationAndHostnameAreReadFromThePlatformFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		platform         string
		files            map[string]string
		config, hostname string
	}{
		"metal with a file":          {"metal", map[string]string{"machine.yaml": "a: b"}, "a: b", "kernel-name"},
		"container without":          {"container", nil, "", "kernel-name"},
		"nocloud with a seed":        {"nocloud", map[string]string{"user-data": "kind: MachineConfig", "meta-data": "instance-id: i\nlocal-hostname: seed\n"}, "kind: MachineConfig", "seed"},
		"nocloud with cloud-init":    {"nocloud", map[string]string{"user-data": "#cloud-config\n{}"}, "", "kernel-name"},
		"nocloud with a script":      {"nocloud", map[string]string{"user-data": "#!/bin/sh\n"}, "", "kernel-name"},
		"nocloud without local name": {"nocloud", map[string]string{"meta-data": "instance-id: i\n"}, "", "kernel-name"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlatform(t, tc.platform, tc.files)
			data, err := p.Configuration(t.Context())
			if err != nil || string(data) != tc.config {
				t.Errorf("configuration is %q, %v", data, err)
			}
			if got, err := p.Hostname(t.Context()); err != nil || got != tc.hostname {
				t.Errorf("host name is %q, %v", got, err)
			}
		})
	}
}

func TestGenericBoardHasNoRequirements(t *testing.T) {
	b := Generic{}
	if err := b.Install(t.TempDir()); err != nil {
		t.Error(err)
	}
	if err := b.Install("/nowhere/at/all"); err == nil {
		t.Error("installed on a missing disk")
	}
	if b.Name() != "generic" || b.KernelArgs() != nil || b.PartitionOptions() != nil {
		t.Error("a generic board has requirements")
	}
}
