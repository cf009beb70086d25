// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// defaultFeatureSet is CVO's name of the default feature set.
const defaultFeatureSet = "Default"

// filter decides which documents are included.
type filter struct {
	Selection
	// cvo applies CVO's rules: manifests without the profile's include
	// annotation are excluded.
	cvo bool
	// allVariants includes every manifest that some selection would include.
	allVariants bool
	// major is the payload's major version.
	major uint64
	// requested are the capabilities of the selection; implicit ones stay enabled
	// without a request.
	requested requestedCapabilities
	implicit  map[string]bool
}

// exclude returns why the document is excluded, or an empty reason.
func (f *filter) exclude(content map[string]any) (reason, detail string) {
	if reason, detail = f.excludeBeforeCapabilities(content); reason != "" {
		return reason, detail
	}
	return f.excludeCapability(annotationsOf(content))
}

// excludeBeforeCapabilities is exclude without the check of capabilities.
func (f *filter) excludeBeforeCapabilities(content map[string]any) (reason, detail string) {
	annotations := annotationsOf(content)
	if reason, detail = f.excludeProfile(annotations); reason != "" && !f.allVariants {
		return reason, detail
	}
	if reason, detail = f.excludeFeatureSet(annotations); reason != "" {
		return reason, detail
	}
	if reason, detail = f.excludeGate(annotations); reason != "" {
		return reason, detail
	}
	return f.excludeMajor(content, annotations)
}

func (f *filter) excludeProfile(annotations map[string]any) (reason, detail string) {
	if f.Profile == "" {
		if wanted := text(annotations, AnnotationProfile); wanted != "" {
			return SkipProfile, "only for profile " + wanted
		}
		return "", ""
	}
	if f.cvo {
		if text(annotations, cvoExcludePrefix+f.Profile) == "true" {
			return SkipExcluded, cvoExcludePrefix + f.Profile
		}
		if text(annotations, cvoIncludePrefix+f.Profile) == "true" {
			return "", ""
		}
		if wanted := text(annotations, AnnotationProfile); wanted == "" || !slices.Contains(words(wanted, ","), f.Profile) {
			return SkipProfile, "no annotation " + cvoIncludePrefix + f.Profile + ": \"true\""
		}
		return "", ""
	}
	if wanted := text(annotations, AnnotationProfile); wanted != "" && !slices.Contains(words(wanted, ","), f.Profile) {
		return SkipProfile, "only for profile " + wanted
	}
	return "", ""
}

// openShiftFeatureSet reports whether name is a feature set of OpenShift
// (openshift/api, config/v1/types_feature.go).
func openShiftFeatureSet(name string) bool {
	switch name {
	case defaultFeatureSet, "TechPreviewNoUpgrade", "DevPreviewNoUpgrade", "CustomNoUpgrade", "OKD":
		return true
	default:
		return false
	}
}

// excludeFeatureSet follows CVO's rules for CVO's annotation
// (openshift/library-go, pkg/manifest): unknown names, or feature gates besides
// feature sets, exclude the manifest everywhere.
func (f *filter) excludeFeatureSet(annotations map[string]any) (reason, detail string) {
	have := f.FeatureSet
	if have == "" {
		have = defaultFeatureSet
	}
	for _, key := range []string{cvoFeatureSet, AnnotationFeatureSet} {
		raw, exists := annotations[key]
		if !exists {
			continue
		}
		if _, gated := annotations[cvoFeatureGate]; gated {
			return SkipInvalid, "annotations " + key + " and " + cvoFeatureGate + " are mutually exclusive; excluded for every feature set"
		}
		wanted, _ := raw.(string)
		names := words(wanted, ",")
		if key == cvoFeatureSet {
			names = strings.Split(wanted, ",")
			for _, name := range names {
				if !openShiftFeatureSet(name) {
					return SkipInvalid, fmt.Sprintf("annotation %s: OpenShift has no feature set %q; excluded for every feature set", key, name)
				}
			}
		}
		if !f.allVariants && !slices.Contains(names, have) {
			return SkipFeatureSet, "only for feature set " + wanted
		}
	}
	return "", ""
}

// excludeGate evaluates "A,-B": A enabled and B disabled.
func (f *filter) excludeGate(annotations map[string]any) (reason, detail string) {
	wanted := text(annotations, cvoFeatureGate)
	if wanted == "" || !f.EvaluateGates {
		return "", ""
	}
	for _, gate := range words(wanted, ",") {
		name, disabled := strings.CutPrefix(gate, "-")
		if slices.Contains(f.FeatureGates, name) == disabled {
			return SkipFeatureGate, "only with feature gate " + gate
		}
	}
	return "", ""
}

// excludeMajor evaluates "4,5,-3": included are the plain versions, excluded are
// the negated ones. As in CVO, the annotation is only valid on FeatureGates and
// CRDs, and invalid ones exclude the manifest from every version.
func (f *filter) excludeMajor(content, annotations map[string]any) (reason, detail string) {
	raw, exists := annotations[cvoMajorVersion]
	if !exists {
		return "", ""
	}
	wanted, _ := raw.(string)
	plain, negated, err := majorVersions(wanted)
	if err == nil && !hasMajorVersion(groupKind(content)) {
		err = errors.New("only allowed on a FeatureGate or a CustomResourceDefinition")
	}
	switch {
	case err != nil:
		return SkipInvalid, fmt.Sprintf("annotation %s: %s; excluded for every version", cvoMajorVersion, err)
	case slices.Contains(negated, f.major):
		return SkipMajorVersion, fmt.Sprintf("not for major version %d", f.major)
	case len(plain) > 0 && !slices.Contains(plain, f.major):
		return SkipMajorVersion, "only for major version " + wanted
	}
	return "", ""
}

// hasMajorVersion reports whether CVO evaluates the major version of a kind.
func hasMajorVersion(group, kind string) bool {
	gk := schema.GroupKind{Group: group, Kind: kind}
	return gk == kinds.FeatureGate || gk == kinds.CustomResourceDefinition
}

// majorVersions parses a list of major versions. A version that is both plain and
// negated is an error.
func majorVersions(list string) (plain, negated []uint64, err error) {
	for _, item := range words(list, ",") {
		digits, not := strings.CutPrefix(item, "-")
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			return nil, nil, fmt.Errorf("invalid major version %q", sanitize.Line(item))
		}
		if not {
			negated = append(negated, n)
		} else {
			plain = append(plain, n)
		}
	}
	for _, n := range plain {
		if slices.Contains(negated, n) {
			return nil, nil, fmt.Errorf("%d is both included and excluded", n)
		}
	}
	return plain, negated, nil
}

func (f *filter) excludeCapability(annotations map[string]any) (reason, detail string) {
	for _, name := range capabilitiesOf(annotations) {
		if !f.requested.has(name) && !f.implicit[name] {
			return SkipCapability, "capability " + name + " isn't enabled"
		}
	}
	return "", ""
}

// isCVO reports whether an annotation of CVO payloads is set.
func isCVO(annotations map[string]any) bool {
	for key := range annotations {
		switch key {
		case cvoFeatureSet, cvoFeatureGate, cvoMajorVersion, cvoCapability, cvoCreateOnly, cvoDelete:
			return true
		}
		if strings.HasPrefix(key, cvoIncludePrefix) || strings.HasPrefix(key, cvoExcludePrefix) {
			return true
		}
	}
	return false
}

// text returns the annotation's value, "" if it is absent or not a string.
func text(annotations map[string]any, key string) string {
	value, _ := annotations[key].(string)
	return value
}

// words splits s, trims whitespace and drops empty words.
func words(s, separator string) []string {
	var out []string
	for word := range strings.SplitSeq(s, separator) {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}
