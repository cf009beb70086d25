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

// odd makes a warning of an oddity, or an error.
func (p *Payload) odd(o oddity, cvo bool) error {
	if !cvo {
		return &LoadError{Kind: ReasonInvalid, File: o.file, Document: o.number, Line: o.line, Message: o.message}
	}
	p.warn(o.file, o.number, o.line, o.message)
	return nil
}

// selectFrom fills Manifests and Skipped.
func (p *Payload) selectFrom(s *scan, opts LoadOptions, cvo bool) error {
	f := filter{Selection: opts.Selection, cvo: cvo, major: p.major(), asked: opts.Selection.asks()}
	if err := p.settleCapabilities(s, &f, opts); err != nil {
		return err
	}
	return p.selectAll(s, &f)
}

// major is the payload's major version.
func (p *Payload) major() uint64 {
	v, err := semver.Parse(p.Version)
	if err != nil {
		return 0 // It was parsed with the metadata already.
	}
	return v.Major
}

// selectAll includes or skips what was scanned.
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
		if err := p.odd(oddity{file.name, 0, 0, "the name isn't of the form 0000_<run level>_<component>_<rest>.yaml"}, f.cvo); err != nil {
			return err
		}
	}
	return nil
}

// selectOne includes or skips one object.
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
		// CVO can't read annotations of which one isn't a string, and leaves
		// the manifest out.
		if reason == "" && f.cvo && (f.Profile != "" || f.every) && e.badAnnotations {
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
	if err := p.knowFields(&m, f.cvo); err != nil {
		return at(err)
	}
	if f.cvo {
		p.missInjection(&m)
	}
	p.Manifests = append(p.Manifests, m)
	return nil
}

// knowFields warns of fields that a built-in kind doesn't have. CVO decodes
// such kinds by their types, and so drops what it doesn't know; a server-side
// apply with it would be refused. In a payload of ours they stay: the server
// may be newer than what this program is linked with.
func (p *Payload) knowFields(m *Manifest, cvo bool) error {
	found, total := unknownIn(m.GVK, m.Object.Object, cvo)
	if total == 0 {
		return nil
	}
	list := strings.Join(found, ", ")
	if more := total - len(found); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	outcome := "unless the API server is newer than this program, it refuses the object"
	if cvo {
		outcome = "left out, as CVO leaves it out"
		var b builder
		if err := b.canonical(m.Object.Object); err != nil {
			return err
		}
		m.JSON, m.Hash = b.scratch, sha256.Sum256(b.scratch)
	}
	p.warn(m.File, m.Document, m.Line, fmt.Sprintf("%s: %s has no field %s: %s", m.ID, m.GVK.Kind+" of "+m.GVK.GroupVersion().String(), list, outcome))
	return nil
}

// missInjection warns of what CVO would write into the object for the cluster
// that it runs in. Nothing is injected here: what is signed is what is applied.
func (p *Payload) missInjection(m *Manifest) {
	annotations := annotationsOf(m.Object.Object)
	if containers := text(annotations, cvoInjectProxy); containers != "" && m.ID.Group == "apps" && (m.ID.Kind == "Deployment" || m.ID.Kind == "DaemonSet") {
		p.warn(m.File, m.Document, m.Line, fmt.Sprintf("%s: annotation %s: the cluster's proxy isn't written into the environment of %s; set it in a layer of your own", m.ID, cvoInjectProxy, sanitize.Line(containers)))
	}
	if text(annotations, cvoInjectTLS) == "true" && m.ID.Group == "" && m.ID.Kind == "ConfigMap" {
		p.warn(m.File, m.Document, m.Line, fmt.Sprintf("%s: annotation %s: the cluster's TLS settings aren't written into its configuration; it keeps what the manifest says", m.ID, cvoInjectTLS))
	}
}

// warn notes an oddity that is accepted.
func (p *Payload) warn(file string, document, line int, message string) {
	at := &LoadError{Kind: ReasonInvalid, File: file, Document: document, Line: line, Message: message}
	p.Warnings = append(p.Warnings, at.Error())
}

func (p *Payload) skipTemplate(file *scannedFile) {
	p.Warnings = append(p.Warnings, file.name+":1: a Go template; it belongs to the cluster-version-operator itself and isn't applied")
	if len(file.entries) == 0 {
		p.Skipped = append(p.Skipped, Skipped{File: file.name, Document: 1, Line: 1, Reason: SkipTemplate, Detail: "a Go template"})
	}
	for i := range file.entries {
		e := &file.entries[i]
		p.Skipped = append(p.Skipped, Skipped{ID: e.manifest.ID, File: file.name, Document: e.number, Line: e.line, Reason: SkipTemplate, Detail: "a Go template"})
	}
}

// duplicates refuses an identity that stands twice. For a profile CVO would
// apply both, one after the other; there the last one is kept, which is where
// that ends. Without a profile they are variants of which nobody chose.
func (p *Payload) duplicates(keepLast bool) error {
	last := make(map[ObjectID]int, len(p.Manifests))
	dropped := false
	for i := range p.Manifests {
		m := &p.Manifests[i]
		if before, exists := last[m.ID]; exists {
			first := &p.Manifests[before]
			at := &LoadError{
				Kind: ReasonInvalid, File: m.File, Document: m.Document, Line: m.Line,
				Message: fmt.Sprintf("%s stands in %s:%d (document %d) already", m.ID, first.File, first.Line, first.Document),
			}
			if !keepLast {
				at.Message += "; if they are variants, select one by its profile, feature set or capability"
				return at
			}
			dropped = true
			p.Warnings = append(p.Warnings, at.Error()+"; this one is applied")
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
	kept := p.Manifests[:0]
	for i := range p.Manifests {
		if last[p.Manifests[i].ID] == i {
			kept = append(kept, p.Manifests[i])
		}
	}
	p.Manifests = kept
	return nil
}
