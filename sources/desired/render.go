// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/sources"
)

// kustomizationFiles returns the file names of a kustomization.
func kustomizationFiles() []string {
	return []string{"kustomization.yaml", "kustomization.yml", "Kustomization"}
}

// render returns the documents of dir: the output of its kustomization, or all
// YAML and JSON files below it.
func render(fsys fs.FS, dir string) ([]document, error) {
	if dir == "" {
		dir = "."
	}
	if !fs.ValidPath(dir) {
		return nil, fail(ReasonInvalid, dir, "isn't a path inside the source")
	}
	info, err := fs.Stat(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(ReasonPathNotFound, dir, "isn't in the source; the accepted revision is still reconciled. Restore it, or change spec.path%s", suggest(fsys, dir))
	}
	if err != nil {
		return nil, fail(ReasonInvalid, dir, "%v", err)
	}
	if !info.IsDir() {
		return readFile(fsys, dir)
	}
	found, err := kustomizationIn(fsys, dir)
	if err != nil {
		return nil, err
	}
	if found != "" {
		return kustomize(fsys, dir)
	}
	return plain(fsys, dir)
}

// suggest returns a hint to the sibling nearest to a mistyped path.
func suggest(fsys fs.FS, dir string) string {
	entries, err := fs.ReadDir(fsys, path.Dir(dir))
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if n := nearest(path.Base(dir), names); n != "" {
		return fmt.Sprintf(" (did you mean %q?)", path.Join(path.Dir(dir), n))
	}
	return ""
}

// kustomizationIn returns the path of dir's kustomization, or "".
func kustomizationIn(fsys fs.FS, dir string) (string, error) {
	found := ""
	for _, name := range kustomizationFiles() {
		full := path.Join(dir, name)
		if _, err := fs.Stat(fsys, full); err == nil {
			if found != "" {
				return "", fail(ReasonInvalid, full, "is next to %s; keep one kustomization", found)
			}
			found = full
		}
	}
	return found, nil
}

func isDocument(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name))
}

// plain reads all documents below dir, in the order of their paths, except in
// hidden files and directories.
func plain(fsys fs.FS, dir string) ([]document, error) {
	var out []document
	err := fs.WalkDir(fsys, dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name != dir && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir() || !isDocument(name):
			return nil
		case slices.Contains(kustomizationFiles(), d.Name()):
			return fail(ReasonInvalid, name, "is a kustomization below a directory of plain documents; "+
				"add a kustomization.yaml to %s that lists it, or remove it", dir)
		}
		docs, err := readFile(fsys, name)
		out = append(out, docs...)
		if err == nil && len(out) > maxDocuments {
			return fail(ReasonLimitExceeded, name, "exceeds the limit of %d documents", maxDocuments)
		}
		return err
	})
	return out, err
}

func readFile(fsys fs.FS, name string) ([]document, error) {
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, fail(ReasonInvalid, name, "%v", err)
	}
	if sources.IsLFSPointer(data) {
		return nil, fail(ReasonInvalid, name, "is a Git LFS pointer; commit the file itself")
	}
	return parseFile(name, data)
}

// kustomizeLock serializes kustomize, which stores schemas in global variables.
var kustomizeLock sync.Mutex

// kustomize renders dir in memory. Fields with which kustomize would fetch or run
// something are rejected before.
func kustomize(fsys fs.FS, dir string) (out []document, err error) {
	if err := checkKustomization(fsys, dir, map[string]bool{}); err != nil {
		return nil, err
	}
	mem, err := inMemory(fsys, dir)
	if err != nil {
		return nil, err
	}
	kustomizeLock.Lock()
	defer kustomizeLock.Unlock()
	defer func() { // kustomize panics on some inputs
		if p := recover(); p != nil {
			out, err = nil, fail(ReasonInvalid, dir, "kustomize failed: %s", sanitize.Line(fmt.Sprint(p)))
		}
	}()
	opts := krusty.MakeDefaultOptions()
	opts.PluginConfig = types.DisabledPluginConfig()
	opts.LoadRestrictions = types.LoadRestrictionsRootOnly
	rendered, err := krusty.MakeKustomizer(opts).Run(mem, path.Join("/", dir))
	if err != nil {
		return nil, fail(ReasonInvalid, dir, "kustomize: %s", strings.ReplaceAll(sanitize.Clip(err.Error(), 480), "'/", "'"))
	}
	if rendered.Size() > maxDocuments {
		return nil, fail(ReasonLimitExceeded, dir, "renders to %d documents; the limit is %d", rendered.Size(), maxDocuments)
	}
	for _, r := range rendered.Resources() {
		doc, err := fromResource(fsys, dir, r)
		if err != nil {
			return nil, err
		}
		out = append(out, doc)
	}
	return out, nil
}

// inMemory copies the source for kustomize and enables the origin annotations.
func inMemory(fsys fs.FS, dir string) (filesys.FileSystem, error) {
	mem := filesys.MakeFsInMemory()
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		if path.Dir(name) == path.Clean(dir) && slices.Contains(kustomizationFiles(), d.Name()) {
			if data, err = withOrigin(data); err != nil {
				return fail(ReasonInvalid, name, "%s", yamlError(err))
			}
		}
		return mem.WriteFile("/"+name, data)
	})
	return mem, err
}

func withOrigin(kustomization []byte) ([]byte, error) {
	var k map[string]any
	if err := yaml.UnmarshalStrict(kustomization, &k); err != nil {
		return nil, err
	}
	if k == nil {
		k = map[string]any{}
	}
	k["buildMetadata"] = []string{types.OriginAnnotations}
	return yaml.Marshal(k)
}

// fromResource converts a rendered object into a document and finds its source
// file and node.
func fromResource(fsys fs.FS, dir string, r *resource.Resource) (document, error) {
	file := dir
	if o, err := r.GetOrigin(); err == nil && o != nil && o.Path != "" && o.Repo == "" {
		file = path.Join(dir, o.Path)
	}
	if err := r.SetOrigin(nil); err != nil {
		return document{}, fail(ReasonInvalid, file, "origin: %v", err)
	}
	data, err := r.AsYAML()
	if err != nil {
		return document{}, fail(ReasonInvalid, file, "rendered: %v", err)
	}
	docs, err := parseFile(file, data)
	if err != nil {
		return document{}, err
	}
	if len(docs) != 1 {
		return document{}, fail(ReasonInvalid, file, "a rendered object has %d documents", len(docs))
	}
	doc := docs[0]
	doc.node = nil // it has the lines of the rendered object
	if written, err := readFile(fsys, file); err == nil {
		for _, w := range written {
			if w.value["kind"] == doc.value["kind"] && (len(written) == 1 || nameOf(w.value) == nameOf(doc.value)) {
				doc.node = w.node
			}
		}
	}
	return doc, nil
}

func nameOf(object map[string]any) string {
	meta, _ := object["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	return name
}
