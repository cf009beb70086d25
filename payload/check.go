// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// Check validates a payload for every selection: each document must be a valid
// manifest, and no selection may include two manifests of the same object. In
// CVO payloads such duplicates are warnings, since Load applies the last one.
// The result contains all variants in payload order and must not be applied.
func Check(tree fs.FS) (*Payload, error) {
	s, err := scanTree(tree, DefaultLimits())
	if err != nil {
		return nil, err
	}
	if err := s.checkForbidden(false); err != nil {
		return nil, err
	}
	p := &Payload{Product: s.meta.Name, Version: s.meta.Version, Channel: s.meta.Channel, VersionHash: s.hash, CVO: s.cvo}
	if p.Images, p.Kubernetes, err = readReferences(tree, s.meta.Version); err != nil {
		return nil, err
	}
	if err := p.reportDeviations(s, s.cvo); err != nil {
		return nil, err
	}
	if _, err := s.capabilities(); err != nil {
		return nil, err
	}
	f := filter{cvo: s.cvo, allVariants: true, major: p.major(), requested: Selection{}.requested()}
	if err := p.selectAll(s, &f); err != nil {
		return nil, err
	}
	return p, p.checkVariants(s.cvo)
}

// checkVariants rejects manifests of the same object that one selection could
// both include.
func (p *Payload) checkVariants(cvo bool) error {
	profiled := cvo && slices.ContainsFunc(p.Manifests, func(m Manifest) bool { return len(variantOf(&m, true).profiles) > 0 })
	same := map[ObjectID][]*Manifest{}
	for i := range p.Manifests {
		m := &p.Manifests[i]
		v := variantOf(m, cvo)
		for _, other := range same[m.ID] {
			if !v.overlaps(variantOf(other, cvo), profiled) {
				continue
			}
			message := fmt.Sprintf("%s is already defined at %s:%d (document %d), and a cluster may select both; give each a different profile or feature set",
				m.ID, other.File, other.Line, other.Document)
			if !profiled {
				return &LoadError{Kind: ReasonInvalid, File: m.File, Document: m.Document, Line: m.Line, Message: message}
			}
			p.warn(m.File, m.Document, m.Line, message+"; the last manifest is applied")
		}
		same[m.ID] = append(same[m.ID], m)
	}
	return nil
}

// variant describes the selections that include a manifest. Capabilities and
// feature gates don't distinguish variants: all capabilities may be enabled at
// once, and gates may not be evaluated.
type variant struct {
	// profiles include the manifest; empty means any profile, except in CVO
	// payloads.
	profiles []string
	// sets are lists of feature sets; each must contain the selected one.
	sets [][]string
}

func variantOf(m *Manifest, cvo bool) variant {
	annotations := annotationsOf(m.Object.Object)
	v := variant{profiles: words(text(annotations, AnnotationProfile), ",")}
	if cvo {
		for _, key := range slices.Sorted(maps.Keys(annotations)) {
			if profile, ok := strings.CutPrefix(key, cvoIncludePrefix); ok && text(annotations, key) == "true" {
				v.profiles = append(v.profiles, profile)
			}
		}
		v.profiles = slices.DeleteFunc(v.profiles, func(profile string) bool { return text(annotations, cvoExcludePrefix+profile) == "true" })
	}
	for _, key := range []string{cvoFeatureSet, AnnotationFeatureSet} {
		if wanted, exists := annotations[key].(string); exists {
			v.sets = append(v.sets, words(wanted, ","))
		}
	}
	return v
}

// overlaps reports whether a selection may include both. profiled is true if
// every selection of the payload names a profile.
func (v variant) overlaps(other variant, profiled bool) bool {
	both := slices.ContainsFunc(v.profiles, func(p string) bool { return slices.Contains(other.profiles, p) })
	if !both && (profiled || len(v.profiles) > 0 && len(other.profiles) > 0) {
		return false
	}
	sets := slices.Concat(v.sets, other.sets)
	if len(sets) == 0 {
		return true
	}
	return slices.ContainsFunc(sets[0], func(name string) bool {
		return !slices.ContainsFunc(sets, func(list []string) bool { return !slices.Contains(list, name) })
	})
}
