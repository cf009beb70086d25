// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-dev/lockstep/nodeos"
)

const head = "apiVersion: lockstep.dev/v1alpha1\nkind: MachineConfig\n"

func TestParseIsStrict(t *testing.T) {
	for name, tc := range map[string]struct{ doc, want string }{
		"a valid document":     {head + "hostname: worker-1.example\nkernelArgs: [console=ttyS0]\n", ""},
		"an unknown field":     {head + "hostnam: x\n", "unknown field"},
		"a repeated field":     {head + "hostname: a\nhostname: b\n", "already set"},
		"another kind":         {"apiVersion: v1\nkind: Pod\n", `are "v1" "Pod"`},
		"a bad host name":      {head + "hostname: Worker_1\n", "hostname"},
		"a bad node name":      {head + "nodeName: -x\n", "nodeName"},
		"a blank in an arg":    {head + "kernelArgs: [\"a b\"]\n", "kernelArgs[0]"},
		"too many kernel args": {head + "kernelArgs: [" + strings.Repeat("a,", 65) + "]\n", "65 kernelArgs"},
		"too many bytes":       {head + "#" + strings.Repeat("x", MaxBytes), "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tc.doc))
			if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && nodeos.ReasonOf(err, "") != "InvalidConfig" {
				t.Errorf("the reason is %q", nodeos.ReasonOf(err, ""))
			}
		})
	}
}

func TestConfigurationIsPersistedAndAnInvalidOneChangesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "machine.yaml")
	notified := 0
	notify := func(nodeos.Provider) error { notified++; return nil }
	m, err := Open(file, notify)
	if err != nil {
		t.Fatal(err)
	}
	if m.Config() != nil {
		t.Error("Config is not nil without a configuration")
	}
	if err := m.SetConfig([]byte(head + "hostname: one\n")); err != nil {
		t.Fatal(err)
	}
	if err := m.SetConfig([]byte("nonsense: true")); err == nil {
		t.Error("an invalid configuration was accepted")
	}
	again, err := Open(file, notify)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.Config(); got == nil || got.Hostname() != "one" || notified != 2 {
		t.Errorf("after a restart: %v, notified %d times", got, notified)
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("files left: %v, %v", left, err)
	}
}

func TestOnlyChangesWithoutARebootApplyImmediately(t *testing.T) {
	m, err := Open(filepath.Join(t.TempDir(), "machine.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.CanApplyImmediate([]byte(head + "nodeName: x\n")); err != nil {
		t.Errorf("the first configuration: %v", err)
	}
	if err := m.SetConfig([]byte(head + "hostname: a\nnodeName: x\n")); err != nil {
		t.Fatal(err)
	}
	for doc, want := range map[string]string{
		"hostname: b\nnodeName: x\n":                        "",
		"hostname: a\nnodeName: y\n":                        "change of nodeName requires",
		"hostname: a\nnodeName: y\nkernelArgs: [quiet]\n":   "change of nodeName, kernelArgs requires",
		"hostname: a\nnodeName: x\nkernelArgs: [quiet=1]\n": "change of kernelArgs requires",
	} {
		err := m.CanApplyImmediate([]byte(head + doc))
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", doc, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{head, head + "hostname: a\n", "{}", "a: &a [*a]", head + "kernelArgs: [1]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err == nil && len(c.doc.problems()) > 0 {
			t.Errorf("%q was accepted", data)
		}
	})
}
