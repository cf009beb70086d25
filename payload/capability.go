// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// The capability baselines of Lockstep.
const (
	// BaselineAll enables every capability; "" means the same.
	BaselineAll = "All"
	// BaselineNone enables only the listed capabilities.
	BaselineNone = "None"
)

// MaxCapabilities limits the capabilities that are enabled in a cluster;
// maxNameLength limits their names, in bytes.
const MaxCapabilities = 256

// baselineStep is a capability set of OpenShift: its name, and the capabilities
// that it adds to the previous set.
type baselineStep struct {
	name string
	adds []string
}

// baselineSteps returns the capability sets of OpenShift in order; each includes
// the previous one. Payloads don't contain them. They come from
// ClusterVersionCapabilitySets in openshift/api,
// config/v1/types_cluster_version.go, at 2a3d73913b5a (August 2026).
func baselineSteps() []baselineStep {
	return []baselineStep{
		{BaselineNone, nil},
		{"v4.11", []string{"baremetal", "marketplace", "openshift-samples", "MachineAPI"}},
		{"v4.12", []string{"Console", "Insights", "Storage", "CSISnapshot"}},
		{"v4.13", []string{"NodeTuning"}},
		{"v4.14", []string{"Build", "DeploymentConfig", "ImageRegistry"}},
		{"v4.15", []string{"OperatorLifecycleManager", "CloudCredential"}},
		{"v4.16", []string{"Ingress", "CloudControllerManager"}},
		{"v4.17", nil},
		{"v4.18", []string{"OperatorLifecycleManagerV1"}},
		{"vCurrent", []string{"CompatibilityRequirements", "ClusterAPI"}},
	}
}

// Baselines lists the allowed values of Selection.Baseline.
func Baselines() []string {
	names := []string{BaselineAll}
	for _, step := range baselineSteps() {
		names = append(names, step.name)
	}
	return names
}

// requestedCapabilities are the capabilities that a selection requests.
type requestedCapabilities struct {
	all   bool
	names map[string]bool
}

// requested evaluates the selection's baseline and its list of capabilities.
func (s Selection) requested() requestedCapabilities {
	a := requestedCapabilities{all: s.Baseline == "" || s.Baseline == BaselineAll, names: map[string]bool{}}
	for _, name := range s.Capabilities {
		a.names[name] = true
	}
	if a.all {
		return a
	}
	for _, step := range baselineSteps() {
		for _, name := range step.adds {
			a.names[name] = true
		}
		if step.name == s.Baseline {
			break
		}
	}
	return a
}

func (a requestedCapabilities) has(capability string) bool { return a.all || a.names[capability] }

// Validate rejects unknown baselines and lists over their limits.
func (s Selection) Validate() error {
	if s.Baseline != "" && !slices.Contains(Baselines(), s.Baseline) {
		return fmt.Errorf("unknown capability baseline %q: must be one of %s", sanitize.Line(s.Baseline), strings.Join(Baselines(), ", "))
	}
	if len(s.Capabilities) > MaxCapabilities {
		return fmt.Errorf("%d capabilities listed, at most %d are allowed", len(s.Capabilities), MaxCapabilities)
	}
	for _, name := range s.Capabilities {
		if name == "" || len(name) > maxNameLength {
			return fmt.Errorf("capability name has %d bytes, must have 1 to %d", len(name), maxNameLength)
		}
	}
	return nil
}

// capabilitiesOf returns the capabilities that an object requires, all of them.
func capabilitiesOf(annotations map[string]any) []string {
	return append(words(text(annotations, cvoCapability), "+"), words(text(annotations, AnnotationCapability), "+")...)
}

// resolveCapabilities enables the requested capabilities and all that were ever
// enabled in the cluster, since their objects can't be removed from a running
// cluster. It sets f.implicit and the payload's EnabledCapabilities and
// ImplicitCapabilities.
func (p *Payload) resolveCapabilities(s *scan, f *filter, opts LoadOptions) error {
	named, err := s.capabilities()
	if err != nil {
		return err
	}
	enabled := map[string]bool{}
	for _, name := range opts.Enabled {
		enabled[name] = true
	}
	if opts.Previous != nil {
		for _, name := range opts.Previous.EnabledCapabilities {
			enabled[name] = true
		}
	}
	for name := range s.moved(f, opts) {
		enabled[name] = true
	}
	f.implicit = map[string]bool{}
	for name := range enabled {
		f.implicit[name] = !f.requested.has(name)
		if f.implicit[name] {
			p.ImplicitCapabilities = append(p.ImplicitCapabilities, name)
		}
	}
	slices.Sort(p.ImplicitCapabilities)
	for name := range named {
		if f.requested.has(name) {
			enabled[name] = true
		}
	}
	if len(enabled) > MaxCapabilities {
		return &LoadError{Kind: ReasonLimit, Message: fmt.Sprintf("%d capabilities would be enabled, at most %d are allowed", len(enabled), MaxCapabilities)}
	}
	if len(enabled) > 0 {
		p.EnabledCapabilities = slices.Sorted(maps.Keys(enabled))
	}
	return nil
}

// capabilities returns all capabilities that the payload's documents name.
func (s *scan) capabilities() (map[string]bool, error) {
	named := map[string]bool{}
	for i := range s.files {
		for j := range s.files[i].entries {
			e := &s.files[i].entries[j]
			for _, name := range capabilitiesOf(annotationsOf(e.content)) {
				if len(name) > maxNameLength {
					return nil, &LoadError{
						Kind: ReasonLimit, File: s.files[i].name, Document: e.number, Line: e.line,
						Message: fmt.Sprintf("capability name has %d bytes, at most %d are allowed", len(name), maxNameLength),
					}
				}
				named[name] = true
			}
		}
	}
	return named, nil
}

// moved returns the capabilities that aren't requested but that this payload
// requires for an object that is already managed.
func (s *scan) moved(f *filter, opts LoadOptions) map[string]bool {
	managed := make(map[ObjectID]bool, len(opts.Managed))
	for _, id := range opts.Managed {
		managed[id] = true
	}
	if opts.Previous != nil {
		for i := range opts.Previous.Manifests {
			managed[opts.Previous.Manifests[i].ID] = true
		}
	}
	moved := map[string]bool{}
	if len(managed) == 0 {
		return moved
	}
	for i := range s.files {
		for j := range s.files[i].entries {
			e := &s.files[i].entries[j]
			if !managed[e.manifest.ID] {
				continue
			}
			if reason, _ := f.excludeBeforeCapabilities(e.content); reason != "" {
				continue
			}
			for _, name := range capabilitiesOf(annotationsOf(e.content)) {
				if !f.requested.has(name) {
					moved[name] = true
				}
			}
		}
	}
	return moved
}
