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

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

// kustomizationNames are the file names of kustomizations.
func kustomizationNames() []string {
	return []string{"kustomization.yaml", "kustomization.yml", "Kustomization"}
}

// render returns the manifests of a component, with file names in CVO's order.
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
		err = fmt.Errorf("%s contains no manifest", c.Path)
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
	return fmt.Sprintf("%s/0000_%02d_%s_%04d-%s.yaml", payload.ReleaseDir, c.RunLevel, c.Name, number, rest)
}

// plain returns the YAML and JSON files of a directory unchanged, sorted by name.
// They must contain only objects.
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
			return nil, fmt.Errorf("%s: directories without a kustomization can't have subdirectories", path.Join(c.Path, e.Name()))
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

// checkObjects rejects documents that aren't Kubernetes objects.
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

// unsafeInName matches characters that are replaced in file names.
var unsafeInName = regexp.MustCompile(`[^a-z0-9.-]+`)

// maxSlug limits the descriptive part of a file name.
const maxSlug = 100

// slug returns the descriptive part of a file name.
func slug(s string) string {
	s = strings.Trim(unsafeInName.ReplaceAllString(strings.ToLower(s), "-"), "-.")
	return s[:min(len(s), maxSlug)]
}

// kustomize renders a kustomization in a file system in memory that contains only
// the source. Plugins are disabled. Remote references are rejected first, since
// kustomize would fetch them.
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
		// The file system rejects some file names. The kustomization fails if it
		// refers to such a file.
		_ = disk.WriteFile("/"+name, b)
	}
	k := krusty.MakeKustomizer(&krusty.Options{
		Reorder:          krusty.ReorderOptionLegacy,
		LoadRestrictions: ktypes.LoadRestrictionsRootOnly,
		PluginConfig:     ktypes.DisabledPluginConfig(),
	})
	m, err := k.Run(disk, "/"+c.Path)
	if err != nil {
		return nil, fmt.Errorf("run kustomize: %w", err)
	}
	var out []file
	for _, r := range m.Resources() {
		b, err := r.AsYAML()
		if err != nil {
			return nil, fmt.Errorf("run kustomize: %s: %w", r.CurId(), err)
		}
		if err := checkObjects(b); err != nil {
			return nil, fmt.Errorf("run kustomize: %s: %w", r.CurId(), err)
		}
		out = append(out, file{fileName(c, len(out), slug(r.GetKind()+"-"+r.GetName())), b})
	}
	return out, nil
}

// references are the fields of a kustomization whose entries can be remote.
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

// generator lists the sources of a generated ConfigMap or Secret.
type generator struct {
	Files []string `yaml:"files"`
	Envs  []string `yaml:"envs"`
	Env   string   `yaml:"env"`
}

// paths returns the files that a generator reads, without the key of "key=file".
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

// plugins returns the plugin configurations: files or inline documents.
func (r references) plugins() []string {
	return slices.Concat(r.Generators, r.Transformers, r.Validators)
}

// all returns all entries that are paths.
func (r references) all() []string {
	var out []string
	for _, l := range [][]string{r.Resources, r.Bases, r.Components, r.CRDs, r.Configurations} {
		out = append(out, l...)
	}
	for _, l := range [][]string{r.Generators, r.Transformers, r.Validators, r.StrategicMerge} {
		for _, s := range l {
			if !strings.Contains(s, "\n") { // otherwise an inline document
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

// maxKustomizations limits the kustomizations of one component.
const maxKustomizations = 1000

// checkLocal checks a kustomization and, recursively, those that it includes: all
// entries must be plain paths of files or directories in the source.
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
			return fmt.Errorf("%s: Helm charts aren't supported; render them before the build", path.Join(dir, name))
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

// checkPlugins rejects configurations of kustomize's built-in plugins that contain
// a URL, since plugins that read files would fetch it.
func checkPlugins(in *tree.Tree, dir string, entries []string) error {
	for _, e := range entries {
		text := []byte(e)
		if !strings.Contains(e, "\n") {
			b, err := in.ReadFile(path.Join(dir, e))
			if err != nil {
				return fmt.Errorf("generators, transformers and validators must be files in the source: %w", err)
			}
			text = b
		}
		if bytes.Contains(text, []byte("://")) {
			return errors.New("URLs in generators, transformers and validators aren't supported; nothing is fetched during a build")
		}
	}
	return nil
}

// remoteReference matches references that kustomize treats as a repository or a
// URL even if a file with the same name exists.
var remoteReference = regexp.MustCompile(`://|::|@|\?|%|//|_git|\.git(/|$)|(?i)^(gh:|[a-z0-9.-]+\.(com|org|net|io)[/:])`)

func checkReference(in *tree.Tree, dir, ref string, seen map[string]bool) error {
	to := path.Join(dir, ref)
	info, err := fs.Stat(in, to)
	if remoteReference.MatchString(ref) || path.IsAbs(ref) || err != nil {
		return fmt.Errorf("%q isn't a file or directory in the source; nothing is fetched during a build", ref)
	}
	if info.IsDir() {
		return checkLocal(in, to, seen)
	}
	return nil
}
