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

// defaultFeatureSet is CVO's name for no feature set.
const defaultFeatureSet = "Default"

// filter decides which documents a cluster wants.
type filter struct {
	Selection
	// cvo says that CVO's rules hold: without the profile's include
	// annotation a manifest is left out.
	cvo bool
	// every says that each variant is meant, whatever selects it: only what no
	// cluster would include is left out.
	every bool
	// major is the payload's major version.
	major uint64
	// asked are the capabilities that the selection asks for, implicit those
	// that stay enabled without.
	asked    asked
	implicit map[string]bool
}

// exclude returns why the document is left out, or an empty reason.
func (f *filter) exclude(content map[string]any) (reason, detail string) {
	if reason, detail = f.excludeElse(content); reason != "" {
		return reason, detail
	}
	return f.excludeCapability(annotationsOf(content))
}

// excludeElse is exclude without the capabilities.
func (f *filter) excludeElse(content map[string]any) (reason, detail string) {
	annotations := annotationsOf(content)
	if reason, detail = f.excludeProfile(annotations); reason != "" && !f.every {
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

// openShiftFeatureSet reports whether OpenShift has a feature set of that name
// (openshift/api, config/v1/types_feature.go).
func openShiftFeatureSet(name string) bool {
	switch name {
	case defaultFeatureSet, "TechPreviewNoUpgrade", "DevPreviewNoUpgrade", "CustomNoUpgrade", "OKD":
		return true
	default:
		return false
	}
}

// excludeFeatureSet has CVO's rules for CVO's annotation (openshift/library-go,
// pkg/manifest): a list with a name that isn't known to OpenShift, or beside
// feature gates, includes the manifest nowhere.
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
			return SkipInvalid, "annotations " + key + " and " + cvoFeatureGate + " can't stand together: no feature set includes it"
		}
		wanted, _ := raw.(string)
		names := words(wanted, ",")
		if key == cvoFeatureSet {
			names = strings.Split(wanted, ",")
			for _, name := range names {
				if !openShiftFeatureSet(name) {
					return SkipInvalid, fmt.Sprintf("annotation %s: OpenShift has no feature set %q: no feature set includes it", key, name)
				}
			}
		}
		if !f.every && !slices.Contains(names, have) {
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

// excludeMajor evaluates "4,5,-3": one of the plain ones and none of the
// negated ones. Only feature gates and resource definitions may have it, and
// what can't be read is included in no version, as with CVO.
func (f *filter) excludeMajor(content, annotations map[string]any) (reason, detail string) {
	raw, exists := annotations[cvoMajorVersion]
	if !exists {
		return "", ""
	}
	wanted, _ := raw.(string)
	plain, negated, err := majorVersions(wanted)
	if err == nil && !hasMajorVersion(groupKind(content)) {
		err = errors.New("only a FeatureGate or a CustomResourceDefinition may have it")
	}
	switch {
	case err != nil:
		return SkipInvalid, fmt.Sprintf("annotation %s: %s: no version includes it", cvoMajorVersion, err)
	case slices.Contains(negated, f.major):
		return SkipMajorVersion, fmt.Sprintf("not for major version %d", f.major)
	case len(plain) > 0 && !slices.Contains(plain, f.major):
		return SkipMajorVersion, "only for major version " + wanted
	}
	return "", ""
}

// hasMajorVersion reports whether CVO looks at the major version of a kind.
func hasMajorVersion(group, kind string) bool {
	gk := schema.GroupKind{Group: group, Kind: kind}
	return gk == kinds.FeatureGate || gk == kinds.CustomResourceDefinition
}

// majorVersions reads a list of major versions; one that is plain and negated
// is an error.
func majorVersions(list string) (plain, negated []uint64, err error) {
	for _, item := range words(list, ",") {
		digits, not := strings.CutPrefix(item, "-")
		n, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			return nil, nil, fmt.Errorf("%q isn't a major version", sanitize.Line(item))
		}
		if not {
			negated = append(negated, n)
		} else {
			plain = append(plain, n)
		}
	}
	for _, n := range plain {
		if slices.Contains(negated, n) {
			return nil, nil, fmt.Errorf("%d is wanted and not wanted", n)
		}
	}
	return plain, negated, nil
}

func (f *filter) excludeCapability(annotations map[string]any) (reason, detail string) {
	for _, name := range capabilitiesOf(annotations) {
		if !f.asked.has(name) && !f.implicit[name] {
			return SkipCapability, "capability " + name + " isn't enabled"
		}
	}
	return "", ""
}

// isCVO reports whether an annotation of CVO's payload contract is set.
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

// text returns the annotation's value, "" if it is absent or no string.
func text(annotations map[string]any, key string) string {
	value, _ := annotations[key].(string)
	return value
}

// words splits s and drops blanks and empty words.
func words(s, separator string) []string {
	var out []string
	for word := range strings.SplitSeq(s, separator) {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}
