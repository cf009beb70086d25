// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-dev/lockstep/payload/verify"
)

// LoadOptions say how a payload is loaded.
type LoadOptions struct {
	// Selection says which manifests are wanted.
	Selection Selection
	// Previous is the payload that is managed now, or nil; Enabled are the
	// capabilities that were ever enabled in the cluster, Managed the objects
	// that are managed, as they are remembered apart from Previous. What was
	// enabled and what holds a managed object stays enabled, as a capability
	// can't be taken away from a running cluster.
	Previous *Payload
	Enabled  []string
	Managed  []ObjectID
	// SelfUpdate says that the trust policy lists the product under
	// selfUpdate.
	SelfUpdate bool
	// Limits; the zero value means DefaultLimits.
	Limits Limits
}

// scan is a whole payload before selection.
type scan struct {
	meta    Metadata
	files   []scannedFile
	odd     []oddity
	cvo     bool // some annotation is CVO's
	ours    bool // some annotation is lockstep.dev/profile
	hash    string
	builder builder
}

// scannedFile is one file of manifests.
type scannedFile struct {
	name      string
	runLevel  int
	component string
	entries   []entry
	// template says that the file is one of CVO's Go templates.
	template bool
	// failure is why the file couldn't be decoded; it is forgiven for a
	// template.
	failure error
}

// entry is one object.
type entry struct {
	built
	content      map[string]any
	number, line int
	// failure is why the object can't be a manifest.
	failure error
}

// expected is what the signature vouched for.
type expected struct{ product, version string }

// Load reads the release that signed vouches for from its tree, as
// payload/image or signed itself brought it. Errors are a *LoadError where the
// payload is to blame.
//
// A payload that carries CVO's annotations, or that is loaded for a profile
// and has no profile annotations of ours, is read as the
// cluster-version-operator would read it, and its oddities become warnings;
// in any other they are errors.
func Load(signed verify.Signed, tree fs.FS, opts LoadOptions) (*Payload, error) {
	if signed.IsZero() {
		return nil, &LoadError{Kind: ReasonInvalid, Message: "the payload was not verified"}
	}
	p, err := load(&expected{signed.Product(), signed.Version()}, tree, opts)
	if err != nil {
		return nil, err
	}
	p.Signed, p.Digest, p.Evidence = signed, signed.Digest(), signed.Evidence()
	return p, nil
}

// LoadUnverified reads a payload that nobody vouches for, to look at it: its
// Signed is zero, and it must never be applied.
func LoadUnverified(tree fs.FS, opts LoadOptions) (*Payload, error) {
	return load(nil, tree, opts)
}

// load reads tree and selects from it; want is nil for any product and
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
	if err := s.wall(opts.SelfUpdate); err != nil {
		return nil, err
	}
	p := &Payload{
		Product: s.meta.Name, Version: s.meta.Version, Channel: s.meta.Channel,
		Previous: s.meta.Previous, MinimumVersion: s.meta.MinimumVersion, VersionHash: s.hash,
	}
	mode := s.cvo || opts.Selection.Profile != "" && !s.ours
	if want != nil {
		if err := s.expect(*want, mode); err != nil {
			return nil, err
		}
		p.Product = cmp.Or(p.Product, want.product)
	}
	if p.Images, p.Kubernetes, err = readReferences(tree, s.meta.Version); err != nil {
		return nil, err
	}
	for _, o := range s.odd {
		if err := p.odd(o, mode); err != nil {
			return nil, err
		}
	}
	if err := p.selectFrom(s, opts, mode); err != nil {
		return nil, err
	}
	return p, p.duplicates(mode && opts.Selection.Profile != "")
}

// expect compares the metadata with what was signed.
func (s *scan) expect(want expected, cvo bool) error {
	file := path.Join(ReleaseDir, MetadataFile)
	if s.meta.Version != want.version {
		return &LoadError{Kind: ReasonMismatch, File: file, Message: fmt.Sprintf("version is %q, but %q was signed", s.meta.Version, want.version)}
	}
	if s.meta.Name == want.product || s.meta.Name == "" && cvo {
		return nil
	}
	return &LoadError{Kind: ReasonMismatch, File: file, Message: fmt.Sprintf("name is %q, but product %q was signed", s.meta.Name, want.product)}
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
	names, err := manifestFiles(tree)
	if err != nil {
		return nil, err
	}
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
			return nil, &LoadError{Kind: ReasonLimit, File: name, Message: "the payload has too many manifests"}
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
	s.hash = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	s.builder = builder{}
	return s, nil
}

// manifestFiles lists the files of both directories in payload order.
func manifestFiles(tree fs.FS) ([]string, error) {
	var names []string
	for _, dir := range []string{ManifestsDir, ReleaseDir} {
		entries, err := fs.ReadDir(tree, dir)
		if errors.Is(err, fs.ErrNotExist) && dir == ManifestsDir {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", dir, err)
		}
		start := len(names)
		for _, e := range entries {
			if ext := path.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml" || ext == ".json") {
				names = append(names, path.Join(dir, e.Name()))
			}
		}
		slices.Sort(names[start:])
	}
	return names, nil
}

// fileName is CVO's pattern of a manifest's file name.
var fileName = regexp.MustCompile(`^0000_(\d{1,9})_([a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*?)_`)

// file decodes one file and hashes its objects.
func (s *scan) file(name string, data []byte, limits Limits) (scannedFile, error) {
	f := scannedFile{name: name, runLevel: -1}
	if m := fileName.FindStringSubmatch(path.Base(name)); m != nil {
		f.runLevel, _ = strconv.Atoi(m[1])
		f.component = m[2]
	}
	f.template = strings.HasPrefix(name, ManifestsDir+"/") && bytes.Contains(data, []byte("{{"))
	docs, odd, err := decodeFile(name, data, limits)
	if err != nil {
		if !f.template {
			return f, err
		}
		f.failure = err
		return f, nil
	}
	s.odd = append(s.odd, odd...)
	f.entries = make([]entry, 0, len(docs))
	for _, doc := range docs {
		for _, content := range expandList(doc.content) {
			e := entry{content: content, number: doc.number, line: doc.line}
			s.prepare(&e)
			f.entries = append(f.entries, e)
		}
	}
	return f, nil
}

// expandList returns the items of a v1 List, which kubectl would unpack too.
func expandList(content map[string]any) []map[string]any {
	items, isList := content["items"].([]any)
	if !isList || content["kind"] != "List" || content["apiVersion"] != "v1" {
		return []map[string]any{content}
	}
	out := make([]map[string]any, 0, len(items))
	for _, item := range items {
		object, ok := item.(map[string]any)
		if !ok {
			object = map[string]any{} // It has no kind and is refused as such.
		}
		out = append(out, expandList(object)...)
	}
	return out
}

// prepare notes the object's annotations and makes its manifest.
func (s *scan) prepare(e *entry) {
	annotations := annotationsOf(e.content)
	s.cvo = s.cvo || isCVO(annotations)
	_, profiled := annotations[AnnotationProfile]
	s.ours = s.ours || profiled
	e.built, e.failure = s.builder.build(e.content)
}

// wall holds wall 1 over the whole payload, also over what the selection
// would leave out: a payload that tries is refused as one.
func (s *scan) wall(selfUpdate bool) error {
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
