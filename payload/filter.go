// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// defaultFeatureSet is CVO's name for no feature set.
const defaultFeatureSet = "Default"

// filter decides which documents a cluster wants.
type filter struct {
	Selection
	// cvo says that CVO's rules hold: without the profile's include
	// annotation a manifest is left out.
	cvo bool
	// major is the payload's major version.
	major uint64
	// asked are the capabilities that the selection asks for, implicit those
	// that stay enabled without.
	asked    asked
	implicit map[string]bool
}

// exclude returns why the document is left out, or an empty reason.
func (f *filter) exclude(content map[string]any) (reason, detail string, err error) {
	if reason, detail, err = f.excludeElse(content); reason != "" || err != nil {
		return reason, detail, err
	}
	return f.excludeCapability(annotationsOf(content))
}

// excludeElse is exclude without the capabilities.
func (f *filter) excludeElse(content map[string]any) (reason, detail string, err error) {
	annotations := annotationsOf(content)
	for _, rule := range []func(map[string]any) (string, string, error){
		f.excludeProfile, f.excludeFeatureSet, f.excludeGate, f.excludeMajor,
	} {
		if reason, detail, err = rule(annotations); reason != "" || err != nil {
			return reason, detail, err
		}
	}
	return "", "", nil
}

// leavesOut reports whether the document is left out whatever capabilities are
// enabled.
func (f *filter) leavesOut(content map[string]any) bool {
	reason, _, err := f.excludeElse(content)
	return reason != "" || err != nil
}

func (f *filter) excludeProfile(annotations map[string]any) (reason, detail string, err error) {
	if f.Profile == "" {
		if wanted := text(annotations, AnnotationProfile); wanted != "" {
			return SkipProfile, "only for profile " + wanted, nil
		}
		return "", "", nil
	}
	if f.cvo {
		if text(annotations, cvoExcludePrefix+f.Profile) == "true" {
			return SkipExcluded, cvoExcludePrefix + f.Profile, nil
		}
		if text(annotations, cvoIncludePrefix+f.Profile) == "true" {
			return "", "", nil
		}
		if wanted := text(annotations, AnnotationProfile); wanted == "" || !slices.Contains(words(wanted, ","), f.Profile) {
			return SkipProfile, "no annotation " + cvoIncludePrefix + f.Profile + ": \"true\"", nil
		}
		return "", "", nil
	}
	if wanted := text(annotations, AnnotationProfile); wanted != "" && !slices.Contains(words(wanted, ","), f.Profile) {
		return SkipProfile, "only for profile " + wanted, nil
	}
	return "", "", nil
}

func (f *filter) excludeFeatureSet(annotations map[string]any) (reason, detail string, err error) {
	have := f.FeatureSet
	if have == "" {
		have = defaultFeatureSet
	}
	for _, key := range []string{cvoFeatureSet, AnnotationFeatureSet} {
		raw, exists := annotations[key]
		if !exists {
			continue
		}
		wanted, _ := raw.(string)
		if !slices.Contains(words(wanted, ","), have) {
			return SkipFeatureSet, "only for feature set " + wanted, nil
		}
	}
	return "", "", nil
}

// excludeGate evaluates "A,-B": A enabled and B disabled.
func (f *filter) excludeGate(annotations map[string]any) (reason, detail string, err error) {
	wanted := text(annotations, cvoFeatureGate)
	if wanted == "" || !f.EvaluateGates {
		return "", "", nil
	}
	for _, gate := range words(wanted, ",") {
		name, disabled := strings.CutPrefix(gate, "-")
		if slices.Contains(f.FeatureGates, name) == disabled {
			return SkipFeatureGate, "only with feature gate " + gate, nil
		}
	}
	return "", "", nil
}

// excludeMajor evaluates "4,5,-3": one of the plain ones and none of the
// negated ones.
func (f *filter) excludeMajor(annotations map[string]any) (reason, detail string, err error) {
	wanted := text(annotations, cvoMajorVersion)
	if wanted == "" {
		return "", "", nil
	}
	listed, found := false, false
	for _, item := range words(wanted, ",") {
		digits, negated := strings.CutPrefix(item, "-")
		n, err := strconv.ParseUint(digits, 10, 32)
		if err != nil {
			return "", "", fmt.Errorf("annotation %s: %q isn't a major version", cvoMajorVersion, item)
		}
		if negated && n == f.major {
			return SkipMajorVersion, "not for major version " + digits, nil
		}
		listed, found = listed || !negated, found || !negated && n == f.major
	}
	if listed && !found {
		return SkipMajorVersion, "only for major version " + wanted, nil
	}
	return "", "", nil
}

func (f *filter) excludeCapability(annotations map[string]any) (reason, detail string, err error) {
	for _, name := range capabilitiesOf(annotations) {
		if !f.asked.has(name) && !f.implicit[name] {
			return SkipCapability, "capability " + name + " isn't enabled", nil
		}
	}
	return "", "", nil
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
