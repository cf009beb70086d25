// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/resource"
	ktypes "sigs.k8s.io/kustomize/api/types"
	jsonyaml "sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/tree"
)

// kustomizationNames are the file names of kustomizations.
func kustomizationNames() []string {
	return []string{"kustomization.yaml", "kustomization.yml", "Kustomization"}
}

func isKustomization(in fs.FS, dir string) bool {
	for _, n := range kustomizationNames() {
		if _, err := fs.Stat(in, path.Join(dir, n)); err == nil {
			return true
		}
	}
	return false
}

// kustomize renders a kustomization. Plugins are disabled. Its files are checked
// first: kustomize would fetch remote references, and its errors name no files.
func (r *renderer) kustomize(c *Component) (ok bool, err error) {
	k := kustomizations{renderer: r, ok: true, files: map[string][]payload.SourceObject{}, seen: map[string]bool{}, replaced: map[string][]byte{}}
	k.checkDir(c.Path, nil)
	if !k.ok {
		return false, nil
	}
	resources, keepOrigin, err := runKustomize(r.in, c.Path, k.replaced)
	if err != nil {
		return false, err
	}
	for i, res := range resources.Resources() {
		file, err := k.takeOrigin(c, res, keepOrigin)
		if err != nil {
			return false, err
		}
		b, err := res.AsYAML()
		if err != nil {
			return false, fmt.Errorf("run kustomize: %s: %w", res.CurId(), err)
		}
		src, err := payload.DecodeSource(file, b, true)
		if err != nil {
			return false, fmt.Errorf("run kustomize: %w", err)
		}
		for j := range src.Objects {
			k.locate(&src.Objects[j])
		}
		k.ok = r.check(src.Objects) && k.ok
		if !src.Clean {
			b = nil
		}
		r.files = append(r.files, rendered{fileName(c, i, slug(res.GetKind()+"-"+res.GetName())), c, b, false, src.Objects})
	}
	return k.ok, nil
}

// kustomizeLock serializes kustomize, which stores schemas in global variables.
var kustomizeLock sync.Mutex

// runKustomize renders a kustomization, with annotations for the files of its
// resources. keepOrigin is true if the kustomization asks for them. Files in
// replaced have other content than in the source.
func runKustomize(in *tree.Tree, dir string, replaced map[string][]byte) (out resmap.ResMap, keepOrigin bool, err error) {
	disk := sourceFS{in: in, replaced: replaced}
	if keepOrigin, err = withOrigin(in, dir, replaced); err != nil {
		return nil, false, err
	}
	kustomizeLock.Lock()
	defer kustomizeLock.Unlock()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("run kustomize: %s", sanitize.Line(fmt.Sprint(p)))
		}
	}()
	defer muteStderr()()
	k := krusty.MakeKustomizer(&krusty.Options{
		Reorder:          krusty.ReorderOptionLegacy,
		LoadRestrictions: ktypes.LoadRestrictionsRootOnly,
		PluginConfig:     ktypes.DisabledPluginConfig(),
	})
	out, err = k.Run(disk, "/"+dir)
	if err != nil {
		return nil, false, fmt.Errorf("run kustomize: %s", strings.ReplaceAll(sanitize.Clip(err.Error(), 1024), "'/", "'"))
	}
	return out, keepOrigin, nil
}

// muteStderr drops what is written to os.Stderr until the result is called.
// Kustomize writes deprecation warnings there, without the name of a file; the
// renderer has its own.
func muteStderr() (restore func()) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return func() {}
	}
	stderr := os.Stderr
	os.Stderr = null
	return func() {
		os.Stderr = stderr
		_ = null.Close()
	}
}

// withOrigin replaces the kustomization of dir by one with kustomize's annotations
// for origins enabled. keep is true if they already are.
func withOrigin(in *tree.Tree, dir string, replaced map[string][]byte) (keep bool, err error) {
	for _, n := range kustomizationNames() {
		name := path.Join(dir, n)
		b, err := in.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		var content map[string]any
		if err := jsonyaml.Unmarshal(b, &content); err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
		if content == nil {
			return false, fmt.Errorf("%s is empty", name)
		}
		metadata, _ := content["buildMetadata"].([]any)
		if slices.Contains(metadata, any(ktypes.OriginAnnotations)) {
			return true, nil
		}
		content["buildMetadata"] = append(metadata, ktypes.OriginAnnotations)
		b, err = jsonyaml.Marshal(content)
		replaced[name] = b
		return false, err
	}
	return false, nil
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

// reference is an entry of a kustomization that is a path.
type reference struct {
	path string
	// at is the position in the kustomization: keys and indexes.
	at []string
	// objects is true for files of objects; raw for files of any format.
	objects, raw bool
}

// all returns all entries that are paths.
func (r references) all() []reference {
	var out []reference
	add := func(p string, objects, raw bool, at ...string) {
		if p != "" && !strings.Contains(p, "\n") { // otherwise an inline document
			out = append(out, reference{p, at, objects, raw})
		}
	}
	for field, l := range map[string][]string{
		"resources": r.Resources, "bases": r.Bases, "components": r.Components, "crds": r.CRDs, "configurations": r.Configurations,
		"generators": r.Generators, "transformers": r.Transformers, "validators": r.Validators, "patchesStrategicMerge": r.StrategicMerge,
	} {
		for i, p := range l {
			add(p, field == "resources" || field == "bases", false, field, strconv.Itoa(i))
		}
	}
	for field, l := range map[string][]patchReference{"patches": r.Patches, "replacements": r.Replacements, "patchesJson6902": r.JSON6902} {
		for i, p := range l {
			add(p.Path, false, false, field, strconv.Itoa(i), "path")
		}
	}
	add(r.OpenAPI.Path, false, true, "openapi", "path")
	for field, l := range map[string][]generator{"configMapGenerator": r.ConfigMaps, "secretGenerator": r.Secrets} {
		for i, g := range l {
			for _, p := range g.paths() {
				add(p, false, true, field, strconv.Itoa(i))
			}
		}
	}
	slices.SortStableFunc(out, func(a, b reference) int { return slices.Compare(a.at, b.at) })
	return out
}

// maxKustomizations limits the kustomizations of one component.
const maxKustomizations = 1000

// kustomizations checks the kustomizations of a component.
type kustomizations struct {
	*renderer
	ok bool
	// files are the objects of the resource files.
	files map[string][]payload.SourceObject
	// seen are the checked directories and files.
	seen map[string]bool
	// replaced are files that kustomize must read with other content.
	replaced map[string][]byte
}

func (k *kustomizations) problem(err error) {
	k.problems.Add(err)
	k.ok = false
}

// checkDir checks a kustomization and, recursively, those that it includes: all
// entries must be plain paths of files or directories in the source. chain are the
// directories from the component to this one.
func (k *kustomizations) checkDir(dir string, chain []string) {
	chain = append(slices.Clip(chain), dir)
	if k.seen[dir] {
		return
	}
	if k.seen[dir] = true; len(k.seen) > maxKustomizations {
		k.problem(fmt.Errorf("%s: more than %d kustomizations and files", dir, maxKustomizations))
		return
	}
	found := ""
	for _, n := range kustomizationNames() {
		name := path.Join(dir, n)
		b, err := k.in.ReadFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			k.problem(err)
		case found != "":
			k.problem(fmt.Errorf("%s is next to %s; keep one kustomization", name, found))
		default:
			found = name
			k.checkFile(name, dir, b, chain)
		}
	}
	if found == "" {
		k.problem(fmt.Errorf("%s has no kustomization; add one, or refer to its files", dir))
	}
}

// checkFile checks the content of a kustomization.
func (k *kustomizations) checkFile(name, dir string, b []byte, chain []string) {
	src, err := payload.DecodeSource(name, b, true)
	if err != nil {
		k.problem(err)
		return
	}
	if len(src.Objects) != 1 {
		k.problem(fmt.Errorf("%s has %d documents, must have 1", name, len(src.Objects)))
		return
	}
	o := &src.Objects[0]
	if found := payload.CheckSourceAs(o, reflect.TypeFor[ktypes.Kustomization]()); len(found) > 0 {
		for _, err := range found {
			k.problem(err)
		}
		return
	}
	var refs references
	if err := yaml.Unmarshal(b, &refs); err != nil {
		k.problem(fmt.Errorf("%s: %w", name, err))
		return
	}
	if len(refs.HelmCharts) > 0 || len(refs.HelmInflator) > 0 || refs.HelmGlobals != nil {
		k.problem(fmt.Errorf("%s: Helm charts aren't supported; render them before the build", name))
	}
	k.deprecated(o)
	if err := checkPlugins(k.in, dir, refs.plugins()); err != nil {
		k.problem(fmt.Errorf("%s: %w", name, err))
	}
	for _, ref := range refs.all() {
		k.checkReference(o, ref, dir, chain)
	}
}

// deprecated warns about fields that kustomize will remove.
func (k *kustomizations) deprecated(o *payload.SourceObject) {
	for _, field := range [...]struct{ old, instead string }{
		{"bases", "resources"},
		{"commonLabels", "labels"},
		{"imageTags", "images"},
		{"patchesJson6902", "patches"},
		{"patchesStrategicMerge", "patches"},
		{"vars", "replacements"},
	} {
		if _, used := o.Content[field.old]; used {
			k.warnAt(o, []string{field.old}, "kustomization field %s is deprecated; use %s", field.old, field.instead)
		}
	}
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

// checkReference checks an entry of a kustomization.
func (k *kustomizations) checkReference(o *payload.SourceObject, ref reference, dir string, chain []string) {
	at := func(format string, args ...any) {
		k.problem(o.Errorf(ref.at, "%s", fmt.Sprintf("%s: ", ref.at[0])+fmt.Sprintf(format, args...)))
	}
	to := path.Join(dir, ref.path)
	info, err := fs.Stat(k.in, to)
	switch {
	case path.IsAbs(ref.path) || err != nil:
		at("%q isn't a file or directory in the source; nothing is fetched during a build", ref.path)
	case remoteReference.MatchString(ref.path):
		at("kustomize would treat %q as the address of a repository; rename the file or directory", ref.path)
	case info.IsDir():
		k.checkBase(ref, to, chain, at)
	case !strings.HasPrefix(to, dir+"/"):
		at("%q is outside of %s, and kustomize reads only files below a kustomization; move the file, or add a kustomization beside it and refer to its directory", ref.path, dir)
	case !k.seen[to]:
		k.seen[to] = true
		k.checkContent(ref, to)
	}
}

// checkBase checks a directory that is an entry.
func (k *kustomizations) checkBase(ref reference, to string, chain []string, at func(string, ...any)) {
	if i := slices.Index(chain, to); i >= 0 {
		at("cycle: %s", strings.Join(append(chain[i:len(chain):len(chain)], to), " → "))
		return
	}
	for _, dir := range chain {
		if to == "." || strings.HasPrefix(dir, to+"/") {
			at("%q contains the kustomization %s itself, which kustomize refuses; move what both need to a directory beside them", ref.path, dir)
			return
		}
	}
	k.checkDir(to, chain)
}

// checkContent checks a file that is an entry.
func (k *kustomizations) checkContent(ref reference, name string) {
	if ext := path.Ext(name); ext != ".yaml" && ext != ".yml" && ext != ".json" || ref.raw {
		return
	}
	b, err := k.in.ReadFile(name)
	if err != nil {
		k.problem(err)
		return
	}
	if !ref.objects {
		if err := payload.CheckKeys(name, b); err != nil {
			k.problem(err)
		}
		return
	}
	src, err := payload.DecodeSource(name, b, true)
	if err != nil {
		k.problem(err)
		return
	}
	k.ok = k.check(src.Objects) && k.ok
	k.files[name] = src.Objects
	if src.Inferred {
		f := rendered{name: name, objects: src.Objects}
		if k.replaced[name], err = f.encode(); err != nil {
			k.problem(err)
		}
	}
}

// takeOrigin returns the source file of a rendered object, or the directory of the
// component, and removes the annotation for it.
func (k *kustomizations) takeOrigin(c *Component, res *resource.Resource, keep bool) (file string, err error) {
	file = c.Path
	origin, err := res.GetOrigin()
	if err != nil {
		return "", fmt.Errorf("read the origin of %s: %w", res.CurId(), err)
	}
	if origin != nil && origin.Path != "" {
		file = path.Join(c.Path, origin.Path)
	} else if origin != nil && origin.ConfiguredIn != "" {
		file = path.Join(c.Path, origin.ConfiguredIn)
	}
	if !keep {
		if err := res.SetOrigin(nil); err != nil {
			return "", fmt.Errorf("remove the origin of %s: %w", res.CurId(), err)
		}
	}
	return file, nil
}

// locate gives a rendered object the position of its source: of the object in the
// file with its name, or whose name it extends, or else the only one of its kind.
func (k *kustomizations) locate(o *payload.SourceObject) {
	id := o.ID()
	var named, extended, only *payload.SourceObject
	of := 0
	for i := range k.files[o.File] {
		src := &k.files[o.File][i]
		other := src.ID()
		if other.GroupKind() != id.GroupKind() {
			continue
		}
		of++
		only = src
		switch {
		case other.Name == id.Name:
			named = src
		case strings.Contains(id.Name, other.Name):
			extended = src
		}
	}
	if of > 1 {
		only = nil
	}
	o.MoveTo(cmp.Or(named, extended, only))
}
