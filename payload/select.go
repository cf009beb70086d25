// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/blang/semver/v4"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// reportDeviation adds a warning for CVO payloads and returns an error for others.
func (p *Payload) reportDeviation(o deviation, cvo bool) error {
	if !cvo {
		return &LoadError{Kind: ReasonInvalid, File: o.file, Document: o.number, Line: o.line, Message: o.message}
	}
	p.warn(o.file, o.number, o.line, o.message)
	return nil
}

// reportDeviations reports what the decoder accepted as CVO does, all of it, and
// the hidden files.
func (p *Payload) reportDeviations(s *scan, cvo bool) error {
	for _, name := range s.ignored {
		p.warn(name, 0, 0, "hidden file; ignored")
	}
	var all Problems
	for _, o := range s.deviations {
		all.Add(p.reportDeviation(o, cvo))
	}
	return all.Err()
}

func (p *Payload) selectFrom(s *scan, opts LoadOptions, cvo bool) error {
	f := filter{Selection: opts.Selection, cvo: cvo, major: p.major(), requested: opts.Selection.requested()}
	if err := p.resolveCapabilities(s, &f, opts); err != nil {
		return err
	}
	return p.selectAll(s, &f)
}

func (p *Payload) major() uint64 {
	v, err := semver.Parse(p.Version)
	if err != nil {
		return 0 // Unreachable: the metadata was validated.
	}
	return v.Major
}

// selectAll includes or skips all scanned objects.
func (p *Payload) selectAll(s *scan, f *filter) error {
	p.warnUnpinned()
	for i := range s.files {
		file := &s.files[i]
		if file.template && f.cvo {
			p.skipTemplate(file)
			continue
		}
		if file.failure != nil {
			return file.failure
		}
		before := len(p.Manifests)
		for j := range file.entries {
			if err := p.selectOne(f, file, &file.entries[j]); err != nil {
				return err
			}
		}
		if len(p.Manifests) == before || file.runLevel >= 0 {
			continue
		}
		if err := p.reportDeviation(deviation{file: file.name, message: "invalid file name: must have the form 0000_<run level>_<component>_<rest>.yaml"}, f.cvo); err != nil {
			return err
		}
	}
	return nil
}

func (p *Payload) selectOne(f *filter, file *scannedFile, e *entry) error {
	at := func(err error) error {
		kind := ReasonInvalid
		if known, ok := errors.AsType[*LoadError](err); ok {
			kind = known.Kind
		}
		return &LoadError{Kind: kind, File: file.name, Document: e.number, Line: e.line, Message: err.Error()}
	}
	reason, detail := f.exclude(e.content)
	if e.failure != nil {
		// CVO ignores all annotations if one isn't a string, and excludes the
		// manifest.
		if reason == "" && f.cvo && (f.Profile != "" || f.allVariants) && e.badAnnotations {
			reason, detail = SkipProfile, e.failure.Error()
		}
		if reason == "" || !e.badAnnotations {
			return at(e.failure)
		}
		p.Warnings = append(p.Warnings, at(e.failure).Error())
	}
	if reason == SkipInvalid {
		p.warn(file.name, e.number, e.line, e.manifest.ID.String()+": "+detail)
	}
	if reason != "" {
		p.Skipped = append(p.Skipped, Skipped{ID: e.manifest.ID, File: file.name, Document: e.number, Line: e.line, Reason: reason, Detail: detail})
		return nil
	}
	m := e.manifest
	m.File, m.Document, m.Line = file.name, e.number, e.line
	m.RunLevel, m.Component = file.runLevel, file.component
	if err := p.checkFields(&m, f.cvo); err != nil {
		return at(err)
	}
	if f.cvo {
		p.warnInjection(&m)
		if err := p.dropNamespace(&m); err != nil {
			return at(err)
		}
	}
	p.Manifests = append(p.Manifests, m)
	return nil
}

// checkFields warns about unknown fields of built-in kinds. It removes them in
// CVO payloads, as CVO's typed decoder does, since server-side apply would reject
// them. Other payloads keep them: the API server may be newer than this program.
func (p *Payload) checkFields(m *Manifest, cvo bool) error {
	found, total := unknownIn(m.GVK, m.Object.Object, cvo)
	if total == 0 {
		return nil
	}
	list := strings.Join(found, ", ")
	if more := total - len(found); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	outcome := "the API server rejects the object unless it is newer than this program"
	if cvo {
		outcome = "removed, as CVO does"
		var b builder
		if err := b.canonical(m.Object.Object); err != nil {
			return err
		}
		m.JSON, m.Hash = b.scratch, sha256.Sum256(b.scratch)
	}
	p.warn(m.File, m.Document, m.Line, fmt.Sprintf("%s: %s has no field %s: %s", m.ID, m.GVK.Kind+" of "+m.GVK.GroupVersion().String(), list, outcome))
	return nil
}

// warnInjection warns about cluster settings that CVO would inject into the
// object. Lockstep applies signed manifests unchanged.
func (p *Payload) warnInjection(m *Manifest) {
	annotations := annotationsOf(m.Object.Object)
	if containers := text(annotations, cvoInjectProxy); containers != "" && m.ID.Group == "apps" && (m.ID.Kind == "Deployment" || m.ID.Kind == "DaemonSet") {
		p.warn(m.File, m.Document, m.Line, fmt.Sprintf("%s: annotation %s is ignored: the cluster's proxy isn't injected into %s; set it in your own manifests", m.ID, cvoInjectProxy, sanitize.Line(containers)))
	}
	if text(annotations, cvoInjectTLS) == "true" && m.ID.Group == "" && m.ID.Kind == "ConfigMap" {
		p.warn(m.File, m.Document, m.Line, fmt.Sprintf("%s: annotation %s is ignored: the cluster's TLS settings aren't injected; the manifest is applied unchanged", m.ID, cvoInjectTLS))
	}
}

func (p *Payload) warn(file string, document, line int, message string) {
	at := &LoadError{Kind: ReasonInvalid, File: file, Document: document, Line: line, Message: message}
	p.Warnings = append(p.Warnings, at.Error())
}

func (p *Payload) skipTemplate(file *scannedFile) {
	p.Warnings = append(p.Warnings, file.name+":1: Go template of the cluster-version-operator itself; not applied")
	if len(file.entries) == 0 {
		p.Skipped = append(p.Skipped, Skipped{File: file.name, Document: 1, Line: 1, Reason: SkipTemplate, Detail: "Go template"})
	}
	for i := range file.entries {
		e := &file.entries[i]
		p.Skipped = append(p.Skipped, Skipped{ID: e.manifest.ID, File: file.name, Document: e.number, Line: e.line, Reason: SkipTemplate, Detail: "Go template"})
	}
}

// checkDuplicates rejects two manifests of the same object. With keepLast it keeps
// the last one, which has the same result as CVO applying both in order. Without
// a profile, duplicates are variants that need a selection.
func (p *Payload) checkDuplicates(keepLast bool) error {
	last := make(map[ObjectID]int, len(p.Manifests))
	dropped := false
	for i := range p.Manifests {
		m := &p.Manifests[i]
		if before, exists := last[m.ID]; exists {
			first := &p.Manifests[before]
			at := &LoadError{
				Kind: ReasonInvalid, File: m.File, Document: m.Document, Line: m.Line,
				Message: fmt.Sprintf("%s is already defined at %s:%d (document %d)", m.ID, first.File, first.Line, first.Document),
			}
			if !keepLast {
				at.Message += "; to use variants, select one by profile, feature set or capability"
				return at
			}
			dropped = true
			p.Warnings = append(p.Warnings, at.Error()+"; the last manifest is applied")
			p.Skipped = append(p.Skipped, Skipped{
				ID: first.ID, File: first.File, Document: first.Document, Line: first.Line,
				Reason: SkipDuplicate, Detail: fmt.Sprintf("%s:%d", m.File, m.Line),
			})
		}
		last[m.ID] = i
	}
	if !dropped {
		return nil
	}
	remaining := p.Manifests[:0]
	for i := range p.Manifests {
		if last[p.Manifests[i].ID] == i {
			remaining = append(remaining, p.Manifests[i])
		}
	}
	p.Manifests = remaining
	return nil
}
