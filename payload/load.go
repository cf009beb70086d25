// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// LoadOptions configure Load.
type LoadOptions struct {
	// Selection of manifests.
	Selection Selection
	// Previous is the currently applied payload, or nil. Enabled are the
	// capabilities that were ever enabled in the cluster, and Managed the objects
	// in the persisted inventory. Capabilities that were enabled, or that contain
	// a managed object, stay enabled.
	Previous *Payload
	Enabled  []string
	Managed  []ObjectID
	// SelfUpdate is true if the trust policy lists the product under selfUpdate.
	SelfUpdate bool
	// Limits of the payload; the zero value means DefaultLimits.
	Limits Limits
}

// scan is a decoded payload before selection.
type scan struct {
	meta       Metadata
	files      []scannedFile
	deviations []deviation
	ignored    []string // hidden files
	cvo        bool     // some annotation is from CVO
	profiled   bool     // some annotation is lockstep.dev/profile
	hash       string
	builder    builder
}

// scannedFile is one file of manifests.
type scannedFile struct {
	name      string
	runLevel  int
	component string
	entries   []entry
	// template is true for Go templates of CVO.
	template bool
	// failure to decode the file; ignored for templates.
	failure error
}

// entry is one object.
type entry struct {
	built
	content      map[string]any
	number, line int
	// failure to build the manifest.
	failure error
}

// expected is the signed identity.
type expected struct{ product, version string }

// Load loads a verified release from its file tree, which payload/image or
// signed.Tree provides. Errors caused by the payload are a *LoadError.
//
// Payloads with annotations of the cluster-version-operator (CVO), or without
// lockstep.dev/profile annotations but loaded for a profile, are read as CVO
// reads them. Content that only CVO accepts is a warning there and an error in
// all other payloads.
func Load(signed verify.Signed, tree fs.FS, opts LoadOptions) (*Payload, error) {
	if signed.IsZero() {
		return nil, &LoadError{Kind: ReasonInvalid, Message: "the payload isn't verified"}
	}
	p, err := load(&expected{signed.Product(), signed.Version()}, tree, opts)
	if err != nil {
		return nil, err
	}
	p.Signed, p.Digest, p.Evidence = signed, signed.Digest(), signed.Evidence()
	return p, nil
}

// LoadUnverified loads an unverified payload for inspection. Its Signed is zero,
// and it must not be applied.
func LoadUnverified(tree fs.FS, opts LoadOptions) (*Payload, error) {
	return load(nil, tree, opts)
}

// load reads tree and selects manifests. want is nil to accept any product and
// version.
func load(want *expected, tree fs.FS, opts LoadOptions) (*Payload, error) {
	if opts.Limits == (Limits{}) {
		opts.Limits = DefaultLimits()
	}
	if err := opts.Selection.Validate(); err != nil {
		return nil, &LoadError{Kind: ReasonInvalid, Message: err.Error()}
	}
	s, err := scanTree(tree, opts.Limits)
	if err != nil {
		return nil, err
	}
	if err := s.checkForbidden(opts.SelfUpdate); err != nil {
		return nil, err
	}
	p := &Payload{
		Product: s.meta.Name, Version: s.meta.Version, Channel: s.meta.Channel,
		Previous: s.meta.Previous, MinimumVersion: s.meta.MinimumVersion, MaxMinorHop: s.meta.MaxMinorHop, VersionHash: s.hash,
	}
	mode := s.cvo || opts.Selection.Profile != "" && !s.profiled
	p.CVO = mode
	if mode && p.MaxMinorHop == nil {
		p.MaxMinorHop = new(1) // cluster-version-operator never skips a minor version
	}
	if want != nil {
		if err := s.expect(*want, mode); err != nil {
			return nil, err
		}
		p.Product = cmp.Or(p.Product, want.product)
	}
	if p.Images, p.Kubernetes, err = readReferences(tree, s.meta.Version); err != nil {
		return nil, err
	}
	if err := p.reportDeviations(s, mode); err != nil {
		return nil, err
	}
	if err := p.selectFrom(s, opts, mode); err != nil {
		return nil, err
	}
	return p, p.checkDuplicates(mode && opts.Selection.Profile != "")
}

// expect compares the metadata with the signed identity.
func (s *scan) expect(want expected, cvo bool) error {
	file := path.Join(ReleaseDir, MetadataFile)
	if s.meta.Version != want.version {
		return &LoadError{Kind: ReasonMismatch, File: file, Message: fmt.Sprintf("version is %q, but the signature is for version %q", s.meta.Version, want.version)}
	}
	if s.meta.Name == want.product || s.meta.Name == "" && cvo {
		return nil
	}
	return &LoadError{Kind: ReasonMismatch, File: file, Message: fmt.Sprintf("name is %q, but the signature is for product %q", s.meta.Name, want.product)}
}

// scanTree decodes every file of the payload.
func scanTree(tree fs.FS, limits Limits) (*scan, error) {
	meta, raw, err := readMetadata(tree)
	if err != nil {
		return nil, err
	}
	s := &scan{meta: meta}
	sum := sha256.New()
	fmt.Fprintf(sum, "lockstep release v1\n%x\n", sha256.Sum256(bytes.TrimSpace(raw)))
	names, ignored, err := manifestFiles(tree)
	if err != nil {
		return nil, err
	}
	s.ignored = ignored
	left, manifests := limits.Bytes, limits.Manifests
	for _, name := range names {
		data, err := readBounded(tree, name, left)
		if err != nil {
			return nil, err
		}
		left -= int64(len(data))
		limits.Manifests = manifests
		file, err := s.file(name, data, limits)
		if err != nil {
			return nil, err
		}
		if manifests -= len(file.entries); manifests < 0 {
			return nil, &LoadError{Kind: ReasonLimit, File: name, Message: "too many manifests in the payload"}
		}
		fmt.Fprintf(sum, "%s\n", name)
		for i := range file.entries {
			fmt.Fprintf(sum, "%x\n", file.entries[i].raw)
		}
		if file.failure != nil {
			fmt.Fprintf(sum, "raw %x\n", sha256.Sum256(data))
		}
		s.files = append(s.files, file)
	}
	s.hash = trust.DigestOfSum([sha256.Size]byte(sum.Sum(nil))).String()
	s.builder = builder{}
	return s, nil
}

// manifestFiles lists the manifest files in payload order. Hidden files, which
// editors and operating systems leave behind, are ignored.
func manifestFiles(tree fs.FS) (names, ignored []string, err error) {
	for _, dir := range []string{ManifestsDir, ReleaseDir} {
		entries, err := fs.ReadDir(tree, dir)
		if errors.Is(err, fs.ErrNotExist) && dir == ManifestsDir {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("list %s: %w", dir, err)
		}
		start := len(names)
		for _, e := range entries {
			switch ext := path.Ext(e.Name()); {
			case e.IsDir() || ext != ".yaml" && ext != ".yml" && ext != ".json":
			case strings.HasPrefix(e.Name(), "."):
				ignored = append(ignored, path.Join(dir, e.Name()))
			default:
				names = append(names, path.Join(dir, e.Name()))
			}
		}
		slices.Sort(names[start:])
	}
	return names, ignored, nil
}

// fileName is CVO's pattern for names of manifest files.
var fileName = regexp.MustCompile(`^0000_(\d{1,9})_([a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*?)_`)

// file decodes one file and hashes its objects.
func (s *scan) file(name string, data []byte, limits Limits) (scannedFile, error) {
	f := scannedFile{name: name, runLevel: -1}
	if m := fileName.FindStringSubmatch(path.Base(name)); m != nil {
		f.runLevel, _ = strconv.Atoi(m[1])
		f.component = m[2]
	}
	f.template = strings.HasPrefix(name, ManifestsDir+"/") && bytes.Contains(data, []byte("{{"))
	docs, deviations, err := decodeFile(name, data, limits)
	if err != nil {
		if !f.template {
			return f, err
		}
		f.failure = err
		return f, nil
	}
	s.deviations = append(s.deviations, deviations...)
	f.entries = make([]entry, 0, len(docs))
	for _, doc := range docs {
		for _, item := range expandList(doc.content) {
			e := entry{content: item.content, number: doc.number, line: doc.line}
			s.prepare(&e)
			f.entries = append(f.entries, e)
		}
	}
	return f, nil
}

// prepare evaluates the object's annotations and builds its manifest.
func (s *scan) prepare(e *entry) {
	annotations := annotationsOf(e.content)
	s.cvo = s.cvo || isCVO(annotations)
	if _, profiled := annotations[AnnotationProfile]; profiled {
		s.profiled = true
	}
	e.built, e.failure = s.builder.build(e.content)
}

// checkForbidden enforces trust boundary T1 on all manifests, including those
// that the selection excludes.
func (s *scan) checkForbidden(selfUpdate bool) error {
	for _, f := range s.files {
		for i := range f.entries {
			e := &f.entries[i]
			if reason := forbidden(e.content, selfUpdate); reason != "" {
				return &LoadError{Kind: ReasonForbidden, File: f.name, Document: e.number, Line: e.line, Message: reason}
			}
		}
	}
	return nil
}
