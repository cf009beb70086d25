// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package desired renders the declared documents of a snapshot and strictly
// decodes them into the desired state.
//
// Unknown fields, duplicate keys and objects, other kinds and namespaces, and
// values that the generated schemas reject are errors with file, line and the
// nearest valid name. An empty or missing path is an error, never an empty state.
// A source can't change how it is read (trust boundary T2), and pauses and other
// run-time annotations can't be declared.
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

// State is the desired state of one revision.
type State struct {
	Revision sources.Revision

	GitSources      []*v1alpha1.GitSource
	ClusterReleases []*v1alpha1.ClusterRelease
	NodeOSes        []*v1alpha1.NodeOS
	TrustPolicies   []*v1alpha1.TrustPolicy

	// Objects are all declared objects in apply order: TrustPolicy, GitSource,
	// NodeOS, ClusterRelease, then by name.
	Objects []Object
}

// Object is one declared object.
type Object struct {
	Kind, Name string
	// Hash is the SpecHash of its spec with the defaults of the API server.
	Hash string
	// File and Line of the declaration; Line is 0 if unknown.
	File string
	Line int
	// Manifest is the object to apply, as declared and with its namespace. It
	// must not be changed.
	Manifest *unstructured.Unstructured
}

// Hash returns the spec hash of a declared object. A live object with another hash
// differs from Git (NotFromSource).
func (s *State) Hash(kind, name string) (string, bool) {
	i := slices.IndexFunc(s.Objects, func(o Object) bool { return o.Kind == kind && o.Name == name })
	if i < 0 {
		return "", false
	}
	return s.Objects[i].Hash, true
}

// SpecHash returns the digest, "sha256:<hex>", of a spec of config/v1alpha1, such
// as v1alpha1.NodeOSSpec. Compare only specs with defaults: those of the API
// server and those of a State.
func SpecHash(spec any) (string, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("hash spec: %w", err)
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Reader is the GitSource whose repository is read.
type Reader struct {
	// Name of the object.
	Name string
	// Spec of the live object.
	Spec v1alpha1.GitSourceSpec
	// Prefixes are the URL prefixes of further sources that the trust policy
	// allows.
	Prefixes []string
}

// Request is the content to decode.
type Request struct {
	Revision sources.Revision
	FS       fs.FS
	// Path of a kustomization, a directory of plain documents, or one file.
	Path string
	// Reader enables the checks of trust boundary T2; nil without a cluster
	// (lockstep validate).
	Reader *Reader
}

// Decoder contains the compiled schemas. It is safe for concurrent use.
type Decoder struct{ schemas map[string]*kindSchema }

// NewDecoder compiles the schemas of the declared kinds. An error means that an
// embedded schema is invalid.
func NewDecoder() (*Decoder, error) {
	schemas, err := compile()
	if err != nil {
		return nil, err
	}
	return &Decoder{schemas: schemas}, nil
}

// kinds returns the kinds that a source may declare, in apply order.
func kinds() []string {
	return []string{v1alpha1.KindTrustPolicy, v1alpha1.KindGitSource, v1alpha1.KindNodeOS, v1alpha1.KindClusterRelease}
}

// Decode renders and decodes the documents. Its error is an *Error with all
// problems.
func (d *Decoder) Decode(ctx context.Context, req Request) (*State, error) {
	docs, err := render(req.FS, req.Path)
	if err != nil {
		return nil, asError(req.Path, err)
	}
	if len(docs) == 0 {
		return nil, fail(ReasonEmpty, req.Path, "contains no documents; nothing is deleted. "+
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
			found.add(Problem{File: o.File, Line: o.Line, Object: key, Message: "is declared twice, first in " + place(was)})
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

// asError converts err into an *Error.
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

// selfReference checks trust boundary T2; it returns the problem, or "".
func selfReference(declared *v1alpha1.GitSource, hash string, reader *Reader) string {
	if reader == nil {
		return ""
	}
	if declared.Name == reader.Name {
		live, err := SpecHash(reader.Spec)
		if err != nil || live != hash {
			return "differs from the live GitSource that reads this repository: a source can't change " +
				"how it is read. Change it in the cluster (kubectl edit gitsource " + reader.Name + ") first, or remove the document"
		}
		return ""
	}
	for _, url := range []string{declared.Spec.URL, writeBackURL(declared)} {
		if url != "" && !slices.ContainsFunc(reader.Prefixes, func(p string) bool { return below(url, p) }) {
			return "url " + url + " has none of the prefixes in sources of the trust policy"
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
