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

// Baselines of capabilities that aren't OpenShift's.
const (
	// BaselineAll enables every capability; "" means the same.
	BaselineAll = "All"
	// BaselineNone enables only those that are named.
	BaselineNone = "None"
)

// MaxCapabilities bounds the capabilities that are enabled in a cluster, and
// maxNameLength the name of each.
const MaxCapabilities = 256

// baselineStep is a set of OpenShift's by its name, as what it adds to the one
// before it.
type baselineStep struct {
	name string
	adds []string
}

// baselineSteps are the sets of OpenShift's capabilities, each of which holds
// the one before it, as ClusterVersionCapabilitySets has them in openshift/api,
// config/v1/types_cluster_version.go, at 2a3d73913b5a (August 2026): a payload
// names capabilities but says nothing of sets.
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

// Baselines lists the names that Selection.Baseline may have.
func Baselines() []string {
	names := []string{BaselineAll}
	for _, step := range baselineSteps() {
		names = append(names, step.name)
	}
	return names
}

// asked are the capabilities that a selection asks for.
type asked struct {
	all   bool
	names map[string]bool
}

// asks evaluates the selection's baseline and what it names besides.
func (s Selection) asks() asked {
	a := asked{all: s.Baseline == "" || s.Baseline == BaselineAll, names: map[string]bool{}}
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

func (a asked) has(capability string) bool { return a.all || a.names[capability] }

// Validate refuses a selection that no payload could be loaded by.
func (s Selection) Validate() error {
	if s.Baseline != "" && !slices.Contains(Baselines(), s.Baseline) {
		return fmt.Errorf("capability baseline %q isn't known; want one of %s", sanitize.Line(s.Baseline), strings.Join(Baselines(), ", "))
	}
	if len(s.Capabilities) > MaxCapabilities {
		return fmt.Errorf("%d capabilities besides the baseline, at most %d are allowed", len(s.Capabilities), MaxCapabilities)
	}
	for _, name := range s.Capabilities {
		if name == "" || len(name) > maxNameLength {
			return fmt.Errorf("a capability's name has %d bytes, want 1 to %d", len(name), maxNameLength)
		}
	}
	return nil
}

// capabilitiesOf returns the capabilities that must all be enabled.
func capabilitiesOf(annotations map[string]any) []string {
	return append(words(text(annotations, cvoCapability), "+"), words(text(annotations, AnnotationCapability), "+")...)
}

// settleCapabilities decides which capabilities are in force: those that the
// selection asks for, and those that were once enabled in the cluster, since
// what they hold can't be taken from a running one. It fills f.implicit, and
// EnabledCapabilities and ImplicitCapabilities of the payload.
func (p *Payload) settleCapabilities(s *scan, f *filter, opts LoadOptions) error {
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
		f.implicit[name] = !f.asked.has(name)
		if f.implicit[name] {
			p.ImplicitCapabilities = append(p.ImplicitCapabilities, name)
		}
	}
	slices.Sort(p.ImplicitCapabilities)
	for name := range named {
		if f.asked.has(name) {
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

// capabilities returns all that the payload's documents name.
func (s *scan) capabilities() (map[string]bool, error) {
	named := map[string]bool{}
	for i := range s.files {
		for j := range s.files[i].entries {
			e := &s.files[i].entries[j]
			for _, name := range capabilitiesOf(annotationsOf(e.content)) {
				if len(name) > maxNameLength {
					return nil, &LoadError{
						Kind: ReasonLimit, File: s.files[i].name, Document: e.number, Line: e.line,
						Message: fmt.Sprintf("the name of a capability has %d bytes, at most %d are allowed", len(name), maxNameLength),
					}
				}
				named[name] = true
			}
		}
	}
	return named, nil
}

// moved returns the capabilities that weren't enabled before but now hold an
// object that is managed already: those that its manifest in this payload asks
// for.
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
			if reason, _ := f.excludeElse(e.content); reason != "" {
				continue
			}
			for _, name := range capabilitiesOf(annotationsOf(e.content)) {
				if !f.asked.has(name) {
					moved[name] = true
				}
			}
		}
	}
	return moved
}
