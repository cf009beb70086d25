// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package desired renders the declared documents of a snapshot and decodes
// them, strictly, into the desired state.
//
// What can't be taken exactly as it's written is an error with file, line and
// the nearest valid name: unknown fields, keys that stand twice, two documents
// for one object, other kinds, other namespaces, values that the generated
// schemas refuse. An empty or missing path is an error, never an empty state.
// The package decides nothing about releases or hosts, and applies nothing;
// besides the documents themselves it guards two walls: a source can't change
// how it is read, and brakes can't be declared.
package desired

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/sources"
)

// State is what one revision declares.
type State struct {
	Revision sources.Revision

	GitSources      []*v1alpha1.GitSource
	ClusterReleases []*v1alpha1.ClusterRelease
	NodeOSes        []*v1alpha1.NodeOS
	TrustPolicies   []*v1alpha1.TrustPolicy

	// Objects are all declared objects in the order of applying: TrustPolicy,
	// GitSource, NodeOS, ClusterRelease, then by name.
	Objects []Object
}

// Object is one declared object.
type Object struct {
	Kind, Name string
	// Hash is SpecHash of its spec, defaults filled in as the API server does.
	Hash string
	// File and Line say where it's declared; Line is 0 if it isn't known.
	File string
	Line int
	// Manifest is the object as declared, its namespace filled in: what to
	// apply. It must not be changed.
	Manifest *unstructured.Unstructured
}

// Hash returns the spec hash of a declared object. An object that acts on
// another spec than this one isn't what Git said (NotFromSource).
func (s *State) Hash(kind, name string) (string, bool) {
	i := slices.IndexFunc(s.Objects, func(o Object) bool { return o.Kind == kind && o.Name == name })
	if i < 0 {
		return "", false
	}
	return s.Objects[i].Hash, true
}

// SpecHash returns the digest, "sha256:<hex>", of a spec of config/v1alpha1
// (such as v1alpha1.NodeOSSpec), which identifies it by content. Compare specs
// whose defaults are filled in: those of the API server, and those of a State.
func SpecHash(spec any) (string, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("hash a spec: %w", err)
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Reader is the GitSource whose repository is being read.
type Reader struct {
	// Name of the object.
	Name string
	// Spec as it's live in the cluster.
	Spec v1alpha1.GitSourceSpec
	// Prefixes are the URLs below which the trust root allows further sources.
	Prefixes []string
}

// Request is what to decode.
type Request struct {
	Revision sources.Revision
	FS       fs.FS
	// Path of a kustomization, a directory of plain documents, or one file.
	Path string
	// Reader guards wall 2; nil where there is no cluster (lockstep validate).
	Reader *Reader
}

// Decoder holds the compiled schemas. It's safe for concurrent use.
type Decoder struct{ schemas map[string]*kindSchema }

// NewDecoder compiles the schemas of the declared kinds; an error means that
// the program was built from a broken tree.
func NewDecoder() (*Decoder, error) {
	schemas, err := compile()
	if err != nil {
		return nil, err
	}
	return &Decoder{schemas: schemas}, nil
}

// kinds that people declare, in the order of applying.
func kinds() []string {
	return []string{v1alpha1.KindTrustPolicy, v1alpha1.KindGitSource, v1alpha1.KindNodeOS, v1alpha1.KindClusterRelease}
}

// Decode renders and decodes. All that is wrong is in the one *Error.
func (d *Decoder) Decode(ctx context.Context, req Request) (*State, error) {
	docs, err := render(req.FS, req.Path)
	if err != nil {
		return nil, asError(req.Path, err)
	}
	if len(docs) == 0 {
		return nil, fail(ReasonEmpty, req.Path, "declares nothing; an empty state is never taken for a wish to delete everything. "+
			"Add documents, or suspend the source")
	}
	found := &problems{}
	state := &State{Revision: req.Revision}
	first := map[string]Object{}
	for _, doc := range docs {
		o, ok := d.decode(ctx, doc, found)
		if !ok {
			continue
		}
		key := o.Kind + "/" + o.Name
		if was, twice := first[key]; twice {
			found.add(Problem{File: o.File, Line: o.Line, Object: key, Message: "is declared twice; first in " + place(was)})
			continue
		}
		first[key] = o.Object
		if err := state.add(o, doc, req.Reader, found); err != nil {
			return nil, err
		}
	}
	if err := found.err(); err != nil {
		return nil, err
	}
	slices.SortFunc(state.Objects, func(a, b Object) int {
		if c := slices.Index(kinds(), a.Kind) - slices.Index(kinds(), b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return state, nil
}

// asError makes sure that the caller sees an *Error.
func asError(file string, err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // render wraps nothing
		return e
	}
	return fail(ReasonInvalid, file, "%v", err)
}

func place(o Object) string {
	if o.Line > 0 {
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	}
	return o.File
}

// add converts o into its type and appends it to the state.
func (s *State) add(o *decoded, doc document, reader *Reader, found *problems) error {
	switch o.Kind {
	case v1alpha1.KindTrustPolicy:
		obj, err := typed[v1alpha1.TrustPolicy](o, func(t *v1alpha1.TrustPolicy) any { return t.Spec })
		if err != nil {
			return err
		}
		s.TrustPolicies = append(s.TrustPolicies, obj)
	case v1alpha1.KindGitSource:
		obj, err := typed[v1alpha1.GitSource](o, func(t *v1alpha1.GitSource) any { return t.Spec })
		if err != nil {
			return err
		}
		if p := selfReference(obj, o.Hash, reader); p != "" {
			found.add(Problem{File: o.File, Line: doc.at("spec"), Object: o.Kind + "/" + o.Name, Message: p, reason: ReasonSelfReference})
		}
		s.GitSources = append(s.GitSources, obj)
	case v1alpha1.KindNodeOS:
		obj, err := typed[v1alpha1.NodeOS](o, func(t *v1alpha1.NodeOS) any { return t.Spec })
		if err != nil {
			return err
		}
		s.NodeOSes = append(s.NodeOSes, obj)
	case v1alpha1.KindClusterRelease:
		obj, err := typed[v1alpha1.ClusterRelease](o, func(t *v1alpha1.ClusterRelease) any { return t.Spec })
		if err != nil {
			return err
		}
		s.ClusterReleases = append(s.ClusterReleases, obj)
	}
	s.Objects = append(s.Objects, o.Object)
	return nil
}

// typed converts o.completed and sets o.Hash.
func typed[T any](o *decoded, spec func(*T) any) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.completed, out); err != nil {
		return nil, fail(ReasonInvalid, o.File, "%s/%s: %v", o.Kind, o.Name, err)
	}
	var err error
	o.Hash, err = SpecHash(spec(out))
	return out, err
}

// selfReference guards wall 2; it returns what to say, or "".
func selfReference(declared *v1alpha1.GitSource, hash string, reader *Reader) string {
	if reader == nil {
		return ""
	}
	if declared.Name == reader.Name {
		live, err := SpecHash(reader.Spec)
		if err != nil || live != hash {
			return "this GitSource reads the repository that declares it and differs from the live one: a source can't change " +
				"how it is read. Change it in the cluster (kubectl edit gitsource " + reader.Name + ") first, or remove the document"
		}
		return ""
	}
	for _, url := range []string{declared.Spec.URL, writeBackURL(declared)} {
		if url != "" && !slices.ContainsFunc(reader.Prefixes, func(p string) bool { return below(url, p) }) {
			return "a further source at " + url + " is not below a URL that the trust root lists in sources"
		}
	}
	return ""
}

func writeBackURL(g *v1alpha1.GitSource) string {
	if g.Spec.WriteBack == nil {
		return ""
	}
	return g.Spec.WriteBack.URL
}

// below reports whether url is at or below prefix, by whole path elements.
func below(url, prefix string) bool {
	if prefix == "" || strings.Contains(url, "/../") || strings.HasSuffix(url, "/..") || strings.Contains(url, "%") {
		return false
	}
	return url == prefix || strings.HasPrefix(url, strings.TrimSuffix(prefix, "/")+"/")
}
