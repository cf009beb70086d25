// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/krusty"
	ktypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/lockstep-dev/lockstep/payload/tree"
)

// kustomizationNames are the files that make a folder a kustomization.
func kustomizationNames() []string {
	return []string{"kustomization.yaml", "kustomization.yml", "Kustomization"}
}

// render returns the manifests of a component, named for CVO's order.
func render(in *tree.Tree, c Component) ([]file, error) {
	if _, err := fs.ReadDir(in, c.Path); err != nil {
		return nil, err
	}
	var out []file
	var err error
	if isKustomization(in, c.Path) {
		out, err = kustomize(in, c)
	} else {
		out, err = plain(in, c)
	}
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("%s holds no manifest", c.Path)
	}
	return out, err
}

func isKustomization(in fs.FS, dir string) bool {
	for _, n := range kustomizationNames() {
		if _, err := fs.Stat(in, path.Join(dir, n)); err == nil {
			return true
		}
	}
	return false
}

// fileName returns "0000_<run level>_<component>_<number>-<rest>.yaml".
func fileName(c Component, number int, rest string) string {
	return fmt.Sprintf("%s/0000_%02d_%s_%04d-%s.yaml", releaseDir, c.RunLevel, c.Name, number, rest)
}

// plain takes the YAML files of a folder as they are, in the order of their
// names; each must hold objects only.
func plain(in *tree.Tree, c Component) ([]file, error) {
	entries, err := fs.ReadDir(in, c.Path)
	if err != nil {
		return nil, err
	}
	var out []file
	for _, e := range entries {
		ext := path.Ext(e.Name())
		switch {
		case e.IsDir():
			return nil, fmt.Errorf("%s: a folder without a kustomization may not have folders", path.Join(c.Path, e.Name()))
		case ext != ".yaml" && ext != ".yml" && ext != ".json":
			continue
		}
		b, err := in.ReadFile(path.Join(c.Path, e.Name()))
		if err != nil {
			return nil, err
		}
		if err := checkObjects(b); err != nil {
			return nil, fmt.Errorf("%s: %w", path.Join(c.Path, e.Name()), err)
		}
		out = append(out, file{fileName(c, len(out), slug(strings.TrimSuffix(e.Name(), ext))), b})
	}
	return out, nil
}

// checkObjects refuses documents that aren't objects of an API.
func checkObjects(b []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	for i := 1; ; i++ {
		var o struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string `yaml:"kind"`
			Metadata   struct {
				Name string `yaml:"name"`
			} `yaml:"metadata"`
		}
		err := dec.Decode(&o)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("document %d: %w", i, err)
		case o.Kind == "" || o.APIVersion == "":
			return fmt.Errorf("document %d has no apiVersion or kind", i)
		case o.Metadata.Name == "" && !strings.HasSuffix(o.Kind, "List"):
			return fmt.Errorf("document %d (%s) has no metadata.name", i, o.Kind)
		}
	}
}

// unsafeInName is what a file's name doesn't keep.
var unsafeInName = regexp.MustCompile(`[^a-z0-9.-]+`)

// maxSlug bounds the readable part of a file's name.
const maxSlug = 100

// slug makes a readable part of a file's name.
func slug(s string) string {
	s = strings.Trim(unsafeInName.ReplaceAllString(strings.ToLower(s), "-"), "-.")
	return s[:min(len(s), maxSlug)]
}

// kustomize renders in memory, where there's nothing but the source folder: no
// file outside, no plugin, no program. References to other hosts are refused
// before, because kustomize would follow them.
func kustomize(in *tree.Tree, c Component) ([]file, error) {
	if err := checkLocal(in, c.Path, map[string]bool{}); err != nil {
		return nil, err
	}
	disk := filesys.MakeFsInMemory()
	for _, name := range in.Files() {
		b, err := in.ReadFile(name)
		if err != nil {
			return nil, err
		}
		// Its file system takes fewer names than a disk does. What it refuses
		// isn't there for the kustomization, which says so if it's named.
		_ = disk.WriteFile("/"+name, b)
	}
	k := krusty.MakeKustomizer(&krusty.Options{
		Reorder:          krusty.ReorderOptionLegacy,
		LoadRestrictions: ktypes.LoadRestrictionsRootOnly,
		PluginConfig:     ktypes.DisabledPluginConfig(),
	})
	m, err := k.Run(disk, "/"+c.Path)
	if err != nil {
		return nil, fmt.Errorf("kustomize: %w", err)
	}
	var out []file
	for _, r := range m.Resources() {
		b, err := r.AsYAML()
		if err != nil {
			return nil, fmt.Errorf("kustomize: %s: %w", r.CurId(), err)
		}
		if err := checkObjects(b); err != nil {
			return nil, fmt.Errorf("kustomize: %s: %w", r.CurId(), err)
		}
		out = append(out, file{fileName(c, len(out), slug(r.GetKind()+"-"+r.GetName())), b})
	}
	return out, nil
}

// references are the fields of a kustomization whose entries kustomize would
// fetch from elsewhere if they looked like it.
type references struct {
	Resources      []string         `yaml:"resources"`
	Bases          []string         `yaml:"bases"`
	Components     []string         `yaml:"components"`
	CRDs           []string         `yaml:"crds"`
	Configurations []string         `yaml:"configurations"`
	Generators     []string         `yaml:"generators"`
	Transformers   []string         `yaml:"transformers"`
	Validators     []string         `yaml:"validators"`
	Patches        []patchReference `yaml:"patches"`
	Replacements   []patchReference `yaml:"replacements"`
	OpenAPI        patchReference   `yaml:"openapi"`
	HelmCharts     []any            `yaml:"helmCharts"`
	HelmInflator   []any            `yaml:"helmChartInflationGenerator"`
	HelmGlobals    any              `yaml:"helmGlobals"`
	JSON6902       []patchReference `yaml:"patchesJson6902"`
	ConfigMaps     []generator      `yaml:"configMapGenerator"`
	Secrets        []generator      `yaml:"secretGenerator"`
	StrategicMerge []string         `yaml:"patchesStrategicMerge"`
}

type patchReference struct {
	Path string `yaml:"path"`
}

// generator is what a generated ConfigMap or Secret is read from.
type generator struct {
	Files []string `yaml:"files"`
	Envs  []string `yaml:"envs"`
	Env   string   `yaml:"env"`
}

// paths returns the files that a generator reads; "key=file" names a key.
func (g generator) paths() []string {
	var out []string
	for _, f := range g.Files {
		if _, name, ok := strings.Cut(f, "="); ok {
			f = name
		}
		out = append(out, f)
	}
	out = append(out, g.Envs...)
	if g.Env != "" {
		out = append(out, g.Env)
	}
	return out
}

// plugins returns the entries that are configurations of plugins: files or
// inline documents.
func (r references) plugins() []string {
	return slices.Concat(r.Generators, r.Transformers, r.Validators)
}

// all returns every entry that is a path.
func (r references) all() []string {
	var out []string
	for _, l := range [][]string{r.Resources, r.Bases, r.Components, r.CRDs, r.Configurations} {
		out = append(out, l...)
	}
	for _, l := range [][]string{r.Generators, r.Transformers, r.Validators, r.StrategicMerge} {
		for _, s := range l {
			if !strings.Contains(s, "\n") { // these may be inline documents
				out = append(out, s)
			}
		}
	}
	for _, l := range [][]patchReference{r.Patches, r.Replacements, r.JSON6902, {r.OpenAPI}} {
		for _, p := range l {
			if p.Path != "" {
				out = append(out, p.Path)
			}
		}
	}
	for _, g := range slices.Concat(r.ConfigMaps, r.Secrets) {
		out = append(out, g.paths()...)
	}
	return out
}

// maxKustomizations bounds how many folders a component may draw together.
const maxKustomizations = 1000

// checkLocal follows a kustomization and those that it names: each entry must
// be a file or a folder of the source, reached by a plain path.
func checkLocal(in *tree.Tree, dir string, seen map[string]bool) error {
	if seen[dir] {
		return nil
	}
	if seen[dir] = true; len(seen) > maxKustomizations {
		return fmt.Errorf("more than %d kustomizations", maxKustomizations)
	}
	for _, name := range kustomizationNames() {
		b, err := in.ReadFile(path.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var r references
		if err := yaml.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("%s: %w", path.Join(dir, name), err)
		}
		if len(r.HelmCharts) > 0 || len(r.HelmInflator) > 0 || r.HelmGlobals != nil {
			return fmt.Errorf("%s: Helm charts would run a program: render them first", path.Join(dir, name))
		}
		if err := checkPlugins(in, dir, r.plugins()); err != nil {
			return fmt.Errorf("%s: %w", path.Join(dir, name), err)
		}
		for _, ref := range r.all() {
			if err := checkReference(in, dir, ref, seen); err != nil {
				return fmt.Errorf("%s: %w", path.Join(dir, name), err)
			}
		}
	}
	return nil
}

// checkPlugins refuses configurations of kustomize's built-in plugins that hold
// a URL anywhere: those that read files would fetch it.
func checkPlugins(in *tree.Tree, dir string, entries []string) error {
	for _, e := range entries {
		text := []byte(e)
		if !strings.Contains(e, "\n") {
			b, err := in.ReadFile(path.Join(dir, e))
			if err != nil {
				return fmt.Errorf("generators, transformers and validators must be files of the source: %w", err)
			}
			text = b
		}
		if bytes.Contains(text, []byte("://")) {
			return errors.New("a generator, transformer or validator holds a URL: nothing is fetched from elsewhere")
		}
	}
	return nil
}

// remoteSigns are what kustomize takes for a repository or a URL even if a
// file of that name exists.
var remoteSigns = regexp.MustCompile(`://|::|@|\?|%|//|_git|\.git(/|$)|(?i)^(gh:|[a-z0-9.-]+\.(com|org|net|io)[/:])`)

func checkReference(in *tree.Tree, dir, ref string, seen map[string]bool) error {
	to := path.Join(dir, ref)
	info, err := fs.Stat(in, to)
	if remoteSigns.MatchString(ref) || path.IsAbs(ref) || err != nil {
		return fmt.Errorf("%q isn't a file or folder of the source: nothing is fetched from elsewhere", ref)
	}
	if info.IsDir() {
		return checkLocal(in, to, seen)
	}
	return nil
}
