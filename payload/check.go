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

// Check reads a payload as any cluster might, whatever that selects: every
// document must be a manifest, and no two of one identity may be such that a
// selection takes both. In a payload of CVO's the latter is a warning, as a
// load keeps the last one. Manifests of the result are all variants in payload
// order: it must never be applied.
func Check(tree fs.FS) (*Payload, error) {
	s, err := scanTree(tree, DefaultLimits())
	if err != nil {
		return nil, err
	}
	if err := s.wall(false); err != nil {
		return nil, err
	}
	p := &Payload{Product: s.meta.Name, Version: s.meta.Version, Channel: s.meta.Channel, VersionHash: s.hash}
	if p.Images, p.Kubernetes, err = readReferences(tree, s.meta.Version); err != nil {
		return nil, err
	}
	for _, o := range s.odd {
		if err := p.odd(o, s.cvo); err != nil {
			return nil, err
		}
	}
	if _, err := s.capabilities(); err != nil {
		return nil, err
	}
	f := filter{cvo: s.cvo, every: true, major: p.major(), asked: Selection{}.asks()}
	if err := p.selectAll(s, &f); err != nil {
		return nil, err
	}
	return p, p.variants(s.cvo)
}

// variants looks for manifests of one identity that are no variants of one
// another.
func (p *Payload) variants(cvo bool) error {
	profiled := cvo && slices.ContainsFunc(p.Manifests, func(m Manifest) bool { return len(variantOf(&m, true).profiles) > 0 })
	same := map[ObjectID][]*Manifest{}
	for i := range p.Manifests {
		m := &p.Manifests[i]
		v := variantOf(m, cvo)
		for _, other := range same[m.ID] {
			if !v.meets(variantOf(other, cvo), profiled) {
				continue
			}
			message := fmt.Sprintf("%s stands in %s:%d (document %d) already, and a cluster may select both; a profile or a feature set that the other lacks makes it a variant",
				m.ID, other.File, other.Line, other.Document)
			if !profiled {
				return &LoadError{Kind: ReasonInvalid, File: m.File, Document: m.Document, Line: m.Line, Message: message}
			}
			p.warn(m.File, m.Document, m.Line, message+"; the last one is applied")
		}
		same[m.ID] = append(same[m.ID], m)
	}
	return nil
}

// variant is which selections include a manifest. Capabilities and feature
// gates make no variants: all of them may be enabled, and gates that aren't
// evaluated exclude nothing.
type variant struct {
	// profiles that include it; none: any, in a payload of ours.
	profiles []string
	// sets are lists of feature sets, each of which must have the selected one.
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

// meets reports whether a selection may include both. profiled says that one
// of the payload's profiles is always selected.
func (v variant) meets(other variant, profiled bool) bool {
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
