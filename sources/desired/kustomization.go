// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// pathFields of a kustomization contain paths; each entry must be in the source,
// because kustomize would fetch URLs.
func pathFields() []string { return []string{"resources", "components", "bases"} }

// patchFields contain patches: strings, or objects that may refer to a file.
func patchFields() []string {
	return []string{"patches", "patchesStrategicMerge", "patchesJson6902", "replacements"}
}

// plainFields refer to no file.
func plainFields() []string {
	return []string{
		"apiVersion", "kind", "metadata", "namespace", "namePrefix", "nameSuffix", "commonLabels", "labels",
		"commonAnnotations", "images", "replicas", "buildMetadata", "sortOptions",
	}
}

// checkKustomization allows only fields that need no other content: no remote
// bases, plugins, functions, charts, generators or schemas. Field names must match
// exactly, although kustomize ignores their case.
func checkKustomization(fsys fs.FS, dir string, seen map[string]bool) error {
	if seen[dir] {
		return nil
	}
	seen[dir] = true
	if len(seen) > 256 {
		return fail(ReasonLimitExceeded, dir, "exceeds the limit of 256 bases")
	}
	file, err := kustomizationIn(fsys, dir)
	if err != nil {
		return err
	}
	if file == "" {
		return fail(ReasonInvalid, dir, "is a directory without a kustomization; add one, or list its files")
	}
	docs, err := readFile(fsys, file)
	if err != nil {
		return err
	}
	if len(docs) != 1 {
		return fail(ReasonInvalid, file, "has %d documents; want one kustomization", len(docs))
	}
	k := docs[0]
	allowed := slices.Concat(pathFields(), patchFields(), plainFields())
	for _, key := range slices.Sorted(maps.Keys(k.value)) {
		if !slices.Contains(allowed, key) {
			return &Error{Problems: []Problem{{
				File: file, Line: k.at(key),
				Message: "kustomization field " + key + " isn't supported: it could fetch or run something, or create objects of other kinds" + didYouMean(nearest(key, allowed)),
			}}}
		}
	}
	for _, key := range pathFields() {
		if err := checkEntries(fsys, k, dir, key, seen); err != nil {
			return err
		}
	}
	for _, key := range patchFields() {
		if err := checkPatches(fsys, k, dir, key); err != nil {
			return err
		}
	}
	return nil
}

func checkEntries(fsys fs.FS, k document, dir, key string, seen map[string]bool) error {
	list, _ := k.value[key].([]any)
	for _, e := range list {
		name, ok := e.(string)
		if !ok {
			return &Error{Problems: []Problem{{File: k.file, Line: k.at(key), Message: key + " has an entry that isn't a path"}}}
		}
		full, err := inside(fsys, k, dir, key, name)
		if err != nil {
			return err
		}
		if info, err := fs.Stat(fsys, full); err == nil && info.IsDir() {
			if err := checkKustomization(fsys, full, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkPatches(fsys fs.FS, k document, dir, key string) error {
	list, _ := k.value[key].([]any)
	for _, e := range list {
		name := ""
		switch v := e.(type) {
		case string:
			if !strings.Contains(v, "\n") && !strings.Contains(v, ": ") { // else an inline patch
				name = v
			}
		case map[string]any:
			name, _ = v["path"].(string)
			for other := range v {
				if strings.EqualFold(other, "path") && other != "path" {
					return &Error{Problems: []Problem{{File: k.file, Line: k.at(key), Message: key + ": path must be lower case"}}}
				}
			}
		}
		if name == "" {
			continue
		}
		if _, err := inside(fsys, k, dir, key, name); err != nil {
			return err
		}
	}
	return nil
}

// inside returns the path of an entry, which must be in the source.
func inside(fsys fs.FS, k document, dir, key, name string) (string, error) {
	full := path.Join(dir, name)
	if !strings.Contains(name, "://") && !path.IsAbs(name) && fs.ValidPath(full) {
		if _, err := fs.Stat(fsys, full); err == nil {
			return full, nil
		}
	}
	return "", &Error{Problems: []Problem{{
		File: k.file, Line: k.at(key),
		Message: key + " refers to " + name + ", which isn't in the source; remote content isn't fetched",
	}}}
}

func didYouMean(name string) string {
	if name == "" {
		return ""
	}
	return "; did you mean " + name + "?"
}
