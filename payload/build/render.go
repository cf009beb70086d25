// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

// rendered is a file of the release before it is packed.
type rendered struct {
	name      string
	component *Component
	// data is the content in the source; nil if it must be encoded from the
	// objects.
	data []byte
	// whole is true if data is a whole file of the source.
	whole   bool
	objects []payload.SourceObject
}

// renderer renders the components of a source. It collects all problems, so that
// one build reports them together.
type renderer struct {
	in       *tree.Tree
	files    []rendered
	scopes   payload.Scopes
	problems payload.Problems
	warnings []string
	ignored  []string
}

// render adds the manifests of a component, with file names in CVO's order.
func (r *renderer) render(c *Component) error {
	if _, err := fs.ReadDir(r.in, c.Path); err != nil {
		return err
	}
	before := len(r.files)
	var ok bool
	var err error
	if isKustomization(r.in, c.Path) {
		ok, err = r.kustomize(c)
	} else {
		ok, err = r.plain(c)
	}
	if err != nil || !ok {
		return err // Its problems are more precise than that the component is empty.
	}
	objects := 0
	for i := range r.files[before:] {
		f := &r.files[before+i]
		objects += len(f.objects)
		for j := range f.objects {
			r.scopes.Add(f.objects[j].Content)
		}
	}
	if objects == 0 {
		return fmt.Errorf("%s contains no manifest; remove the component from %s to delete its objects from clusters", c.Path, SourceFile)
	}
	return nil
}

// fileName returns "0000_<run level>_<component>_<number>-<rest>.yaml".
func fileName(c *Component, number int, rest string) string {
	return fmt.Sprintf("%s/0000_%02d_%s_%04d-%s.yaml", payload.ReleaseDir, c.RunLevel, c.Name, number, rest)
}

// plain adds the YAML and JSON files of a directory, sorted by name. Hidden files
// and files without manifests are ignored. ok is false if there were problems.
func (r *renderer) plain(c *Component) (ok bool, err error) {
	entries, err := fs.ReadDir(r.in, c.Path)
	if err != nil {
		return false, err
	}
	ok = true
	number := 0
	for _, e := range entries {
		name := path.Join(c.Path, e.Name())
		ext := path.Ext(e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."), !e.IsDir() && ext != ".yaml" && ext != ".yml" && ext != ".json":
			r.ignored = append(r.ignored, name)
			continue
		case e.IsDir():
			r.problems.Add(fmt.Errorf("%s: directories without a kustomization can't have subdirectories", name))
			ok = false
			continue
		}
		b, err := r.in.ReadFile(name)
		if err != nil {
			return false, err
		}
		src, err := payload.DecodeSource(name, b, false)
		if err != nil {
			r.problems.Add(err)
			ok = false
			continue
		}
		if !slices.ContainsFunc(src.Objects, func(o payload.SourceObject) bool { return o.IsManifest() }) {
			r.ignored = append(r.ignored, name)
			continue
		}
		ok = r.check(src.Objects) && ok
		if !src.Clean {
			b = nil
		}
		r.files = append(r.files, rendered{fileName(c, number, slug(strings.TrimSuffix(e.Name(), ext))), c, b, true, src.Objects})
		number++
	}
	return ok, nil
}

// check reports the problems of objects and returns false if there are any.
func (r *renderer) check(objects []payload.SourceObject) bool {
	ok := true
	for i := range objects {
		for _, err := range append(payload.CheckSource(&objects[i]), checkListKeys(&objects[i])...) {
			r.problems.Add(err)
			ok = false
		}
	}
	return ok
}

// place gives all objects the namespaces that their kinds require: it removes
// those of cluster-scoped objects and adds those of the components.
func (r *renderer) place() {
	for i := range r.files {
		f := &r.files[i]
		for j := range f.objects {
			if r.placeOne(&f.objects[j], f.component) {
				f.data = nil
			}
		}
	}
}

// placeOne reports whether it changed the object.
func (r *renderer) placeOne(o *payload.SourceObject, c *Component) bool {
	id := o.ID()
	scope := r.scopes.Of(id.GroupKind())
	metadata, _ := o.Content["metadata"].(map[string]any)
	switch {
	case metadata == nil || id.Name == "": // Reported already.
	case scope == kinds.ClusterScoped && id.Namespace != "":
		r.warnAt(o, []string{"metadata", "namespace"}, "%s: namespace %s is removed, since the kind is cluster-scoped", id, id.Namespace)
		delete(metadata, "namespace")
		return true
	case scope == kinds.Namespaced && id.Namespace == "" && c.Namespace != "":
		metadata["namespace"] = c.Namespace
		return true
	case scope == kinds.Namespaced && id.Namespace == "":
		r.problems.Add(o.Errorf([]string{"metadata"}, "%s has no namespace, but its kind is namespaced; set metadata.namespace, or the component's namespace in %s", id, SourceFile))
	case scope == kinds.UnknownScope && id.Namespace == "" && c.Namespace != "":
		r.warnAt(o, []string{"metadata"}, "%s: the component's namespace isn't added, since the release has no CRD that shows whether the kind is namespaced; set metadata.namespace if it is", id)
	}
	return false
}

func (r *renderer) warnAt(o *payload.SourceObject, at []string, format string, args ...any) {
	r.warnings = append(r.warnings, o.Errorf(at, format, args...).Error())
}

// encode returns the content of a file.
func (f *rendered) encode() ([]byte, error) {
	if f.data != nil {
		return f.data, nil
	}
	var out bytes.Buffer
	for i := range f.objects {
		if i > 0 {
			out.WriteString("---\n")
		}
		b, err := yaml.Marshal(f.objects[i].Content)
		if err != nil {
			return nil, fmt.Errorf("encode %s of %s: %w", f.objects[i].ID(), f.objects[i].File, err)
		}
		out.Write(b)
	}
	return out.Bytes(), nil
}

// unsafeInName matches characters that are replaced in file names.
var unsafeInName = regexp.MustCompile(`[^a-z0-9.-]+`)

// maxSlug limits the descriptive part of a file name.
const maxSlug = 100

// slug returns the descriptive part of a file name.
func slug(s string) string {
	s = strings.Trim(unsafeInName.ReplaceAllString(strings.ToLower(s), "-"), "-.")
	return s[:min(len(s), maxSlug)]
}
