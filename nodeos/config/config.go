// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package config is the machine configuration of a host: a small, strictly parsed
// document that is stored on disk.
//
//	apiVersion: lockstep.dev/v1alpha1
//	kind: MachineConfig
//	hostname: worker-1
//	nodeName: worker-1
//	kernelArgs: [console=ttyS0]
//
// It contains the settings of the agent. Settings of the operating system
// (sysctls, files, modules) are out of scope.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// The type and limits of the document.
const (
	// APIVersion is the document's apiVersion.
	APIVersion = "lockstep.dev/v1alpha1"
	// Kind is the document's kind.
	Kind = "MachineConfig"
	// MaxBytes is the maximum size of a document, in bytes.
	MaxBytes = 64 << 10

	maxKernelArgs = 64
	maxKernelArg  = 256
)

// document is the serialized configuration.
type document struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Hostname   string   `json:"hostname,omitempty"`
	NodeName   string   `json:"nodeName,omitempty"`
	KernelArgs []string `json:"kernelArgs,omitempty"`
}

// Config is a valid, immutable machine configuration; it implements
// nodeos.Provider.
type Config struct {
	doc document
	raw []byte
}

var _ nodeos.Provider = (*Config)(nil)

// Hostname implements nodeos.Provider.
func (c *Config) Hostname() string { return c.doc.Hostname }

// NodeName implements nodeos.Provider.
func (c *Config) NodeName() string { return c.doc.NodeName }

// KernelArgs implements nodeos.Provider.
func (c *Config) KernelArgs() []string { return slices.Clone(c.doc.KernelArgs) }

// Bytes implements nodeos.Provider.
func (c *Config) Bytes() []byte { return bytes.Clone(c.raw) }

// Error lists the problems of a configuration.
type Error struct {
	// Problems are the problems found.
	Problems []string
}

// Error implements error.
func (e *Error) Error() string {
	return "machine configuration: " + strings.Join(e.Problems, "; ")
}

// Reason is the condition reason.
func (e *Error) Reason() string { return "InvalidConfig" }

// Parse parses a document, YAML or JSON. Unknown and repeated fields are errors.
func Parse(data []byte) (*Config, error) {
	if len(data) > MaxBytes {
		return nil, &Error{[]string{fmt.Sprintf("%d bytes, at most %d are allowed", len(data), MaxBytes)}}
	}
	var d document
	if err := yaml.UnmarshalStrict(data, &d); err != nil {
		return nil, &Error{[]string{err.Error()}}
	}
	if problems := d.problems(); len(problems) > 0 {
		return nil, &Error{problems}
	}
	return &Config{doc: d, raw: bytes.Clone(data)}, nil
}

// problems returns the problems of a document.
func (d document) problems() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if d.APIVersion != APIVersion || d.Kind != Kind {
		add("apiVersion and kind are %q %q, want %s %s", d.APIVersion, d.Kind, APIVersion, Kind)
	}
	label := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)
	for _, f := range []struct{ name, value string }{{"hostname", d.Hostname}, {"nodeName", d.NodeName}} {
		if f.value != "" && (len(f.value) > 253 || !label.MatchString(f.value)) {
			add("%s %.64q is not a lower-case DNS name", f.name, f.value)
		}
	}
	if len(d.KernelArgs) > maxKernelArgs {
		add("%d kernelArgs, at most %d are allowed", len(d.KernelArgs), maxKernelArgs)
	}
	for i, arg := range d.KernelArgs {
		if arg == "" || len(arg) > maxKernelArg || strings.ContainsFunc(arg, func(r rune) bool { return r <= ' ' || r > '~' }) {
			add("kernelArgs[%d] is empty, longer than %d bytes, or contains blanks or non-ASCII characters", i, maxKernelArg)
		}
	}
	return out
}

// needsReboot returns the changed fields that take effect with the next boot.
func needsReboot(from, to *Config) []string {
	var out []string
	if from.doc.NodeName != to.doc.NodeName {
		out = append(out, "nodeName")
	}
	if !slices.Equal(from.doc.KernelArgs, to.doc.KernelArgs) {
		out = append(out, "kernelArgs")
	}
	return out
}

// Manager stores the active configuration in a file; it implements
// nodeos.ConfigManager and is safe for concurrent use.
type Manager struct {
	file   string
	notify func(nodeos.Provider) error

	mu     sync.Mutex
	active *Config
}

var _ nodeos.ConfigManager = (*Manager)(nil)

// Open returns the manager of a file, which may not exist yet. notify, if not
// nil, is called with each new configuration.
func Open(file string, notify func(nodeos.Provider) error) (*Manager, error) {
	m := &Manager{file: file, notify: notify}
	data, err := files.Read(file, MaxBytes)
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the machine configuration: %w", err)
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	m.active = c
	return m, m.notifyChange(c)
}

func (m *Manager) notifyChange(c *Config) error {
	if m.notify == nil {
		return nil
	}
	return m.notify(c)
}

// Config implements nodeos.ConfigManager.
func (m *Manager) Config() nodeos.Provider {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.active == nil {
		return nil
	}
	return m.active
}

// ValidateConfig implements nodeos.ConfigManager.
func (m *Manager) ValidateConfig(data []byte) (nodeos.Provider, error) {
	c, err := Parse(data)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// SetConfig implements nodeos.ConfigManager: it replaces the file first.
func (m *Manager) SetConfig(data []byte) error {
	c, err := Parse(data)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := files.Write(m.file, data, 0o600); err != nil {
		return fmt.Errorf("write the machine configuration: %w", err)
	}
	m.active = c
	return m.notifyChange(c)
}

// CanApplyImmediate implements nodeos.ConfigManager.
func (m *Manager) CanApplyImmediate(data []byte) error {
	c, err := Parse(data)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.active == nil {
		return nil
	}
	if fields := needsReboot(m.active, c); len(fields) > 0 {
		return nodeos.Refuse("RebootRequired", "apply the machine configuration: a change of %s requires a reboot", strings.Join(fields, ", "))
	}
	return nil
}
