// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package precondition

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/blang/semver/v4"

	"github.com/lockstep-dev/lockstep/payload"
)

// maxNamed bounds how many things one message names.
const maxNamed = 5

// named joins at most maxNamed names.
func named(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}

// blocking is a violation that its name is the reason of.
func blocking(name, format string, args ...any) []Violation {
	return []Violation{{Name: name, Reason: name, Message: fmt.Sprintf(format, args...), Blocking: true}}
}

// versions returns the current and the target version; ok is false before the
// first release or if one of them can't be compared.
func (f *Facts) versions() (current, target semver.Version, ok bool) {
	current, err := semver.ParseTolerant(f.Current)
	if err != nil || f.Target == nil {
		return current, target, false
	}
	target, err = semver.ParseTolerant(f.Target.Version)
	return current, target, err == nil
}

// rollback allows a lower version only if the owner named it, or if it is the
// one that was level before the current one, within its minor version: a
// reverted commit is the request. No payload says which Kubernetes it carries,
// and Kubernetes doesn't go back across a minor version; a patch of the product
// is what is known not to try (as in OpenShift).
func rollback(f *Facts) []Violation {
	current, target, ok := f.versions()
	if !ok || target.GTE(current) || f.RollbackTo == f.Target.Version {
		return nil
	}
	if preceding := f.preceding(); preceding != f.Target.Version {
		return blocking(Rollback, "%s is older than %s and isn't the release before it (%s); set spec.rollback.to: %s to go back to it",
			target, current, orNone(preceding), target)
	}
	if target.Major != current.Major || target.Minor != current.Minor {
		return blocking(Rollback, "%s is of another minor version than %s: going back across one may move the API server back, which Kubernetes doesn't support; "+
			"if this release doesn't, set spec.rollback.to: %s", target, current, target)
	}
	return nil
}

// preceding is the newest completed version besides the current one.
func (f *Facts) preceding() string {
	for _, v := range f.Completed {
		if v != f.Current {
			return v
		}
	}
	return ""
}

func orNone(s string) string {
	if s == "" {
		return "there is none"
	}
	return s
}

// giantHop allows one minor version at a time, no other major version, and
// not less than the release's own minimum.
func giantHop(f *Facts) []Violation {
	current, target, ok := f.versions()
	if !ok || target.LT(current) {
		return nil
	}
	if minimum, err := semver.ParseTolerant(f.Target.MinimumVersion); err == nil && current.LT(minimum) {
		return blocking(GiantHop, "%s can be reached from %s on only, and %s runs; update to that first", target, minimum, current)
	}
	switch {
	case target.Major != current.Major:
		return blocking(GiantHop, "%s to %s changes the major version", current, target)
	case target.Minor > current.Minor+1:
		return blocking(GiantHop, "%s to %s leaves minor versions out; update to %d.%d first", current, target, current.Major, current.Minor+1)
	}
	return nil
}

// upgradeable holds minor and major updates back while something objects; to
// patches it is a warning.
func upgradeable(f *Facts) []Violation {
	current, target, ok := f.versions()
	if !ok || len(f.Blockers) == 0 || target.LTE(current) {
		return nil
	}
	var names []string
	for _, b := range f.Blockers {
		names = append(names, fmt.Sprintf("%s (%s: %s)", b.Name, b.Reason, b.Message))
	}
	out := blocking(Upgradeable, "%s can't be upgraded now", named(names))
	out[0].Blocking = target.Major != current.Major || target.Minor != current.Minor
	out[0].Retriable = true
	return out
}

func versionFloor(f *Facts) []Violation {
	floor, err := semver.ParseTolerant(f.Floor)
	if err != nil || f.Target == nil {
		return nil
	}
	target, err := semver.ParseTolerant(f.Target.Version)
	if err != nil || target.GTE(floor) {
		return nil
	}
	return blocking(VersionFloor, "%s is below %s, the lowest version of %s that the trust policy accepts", target, floor, f.Target.Product)
}

// maxKubeletAge is how many minor versions a kubelet may be older than its
// API server (kubernetes.io, version skew policy).
const maxKubeletAge = 3

func hostSkew(f *Facts) []Violation {
	server, err := semver.ParseTolerant(f.APIServer)
	if err != nil {
		return nil
	}
	var newer, older []string
	for _, node := range slices.Sorted(maps.Keys(f.Kubelets)) {
		kubelet, err := semver.ParseTolerant(f.Kubelets[node])
		switch {
		case err != nil:
		case kubelet.Major != server.Major || kubelet.Minor > server.Minor:
			newer = append(newer, fmt.Sprintf("%s (%s)", node, kubelet))
		case server.Minor-kubelet.Minor > maxKubeletAge:
			older = append(older, fmt.Sprintf("%s (%s)", node, kubelet))
		}
	}
	var out []Violation
	if len(newer) > 0 {
		out = append(out, blocking(HostSkew, "kubelets are newer than the API server (%s): %s", server, named(newer))...)
	}
	if len(older) > 0 {
		out = append(out, blocking(HostSkew, "kubelets are more than %d minor versions older than the API server (%s): %s", maxKubeletAge, server, named(older))...)
	}
	for i := range out {
		out[i].Retriable = true
	}
	return out
}

// apiRemoval names kinds that the server doesn't know and that no definition
// of the payload brings.
func apiRemoval(f *Facts) []Violation {
	if f.Serves == nil || f.Target == nil {
		return nil
	}
	brought := map[[2]string]bool{}
	for i := range f.Target.Manifests {
		if group, kind, ok := definition(&f.Target.Manifests[i]); ok {
			brought[[2]string{group, kind}] = true
		}
	}
	seen := map[string]bool{}
	var names []string
	for i := range f.Target.Manifests {
		m := &f.Target.Manifests[i]
		name := m.GVK.GroupVersion().String() + " " + m.GVK.Kind
		if m.Delete || seen[name] || brought[[2]string{m.GVK.Group, m.GVK.Kind}] {
			continue
		}
		seen[name] = true
		if !f.Serves(m.GVK) {
			names = append(names, fmt.Sprintf("%s (%s:%d)", name, m.File, m.Line))
		}
	}
	if len(names) == 0 {
		return nil
	}
	out := blocking(APIRemoval, "the API server doesn't serve %s, and the release doesn't bring them", named(names))
	out[0].Retriable = true // What brings them may come from another release.
	return out
}

// definition returns what a CustomResourceDefinition defines.
func definition(m *payload.Manifest) (group, kind string, ok bool) {
	if m.ID.Group != "apiextensions.k8s.io" || m.Delete {
		return "", "", false
	}
	spec, _ := m.Object.Object["spec"].(map[string]any)
	names, _ := spec["names"].(map[string]any)
	group, _ = spec["group"].(string)
	kind, _ = names["kind"].(string)
	return group, kind, kind != ""
}

// storedVersions finds definitions that drop a version in which objects are
// stored: the server would refuse them amid the update.
func storedVersions(f *Facts) []Violation {
	if f.Target == nil {
		return nil
	}
	var names []string
	for i := range f.Target.Manifests {
		m := &f.Target.Manifests[i]
		stored := f.StoredVersions[m.ID.Name]
		if _, _, ok := definition(m); !ok || len(stored) == 0 {
			continue
		}
		kept := declaredVersions(m)
		for _, version := range stored {
			if !slices.Contains(kept, version) {
				names = append(names, fmt.Sprintf("%s drops %s", m.ID.Name, version))
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	return blocking(StoredVersions, "objects are still stored in versions that the release drops: %s; migrate them and remove the versions from status.storedVersions", named(names))
}

func declaredVersions(m *payload.Manifest) []string {
	spec, _ := m.Object.Object["spec"].(map[string]any)
	list, _ := spec["versions"].([]any)
	var out []string
	for _, entry := range list {
		version, _ := entry.(map[string]any)
		if name, ok := version["name"].(string); ok {
			out = append(out, name)
		}
	}
	return out
}

func ownedByOther(f *Facts) []Violation {
	var names []string
	for _, id := range slices.SortedFunc(maps.Keys(f.Owners), payload.ObjectID.Compare) {
		names = append(names, fmt.Sprintf("%s (%s)", id, f.Owners[id]))
	}
	if len(names) == 0 {
		return nil
	}
	return blocking(OwnedByOther, "objects belong to another set: %s; remove them there, or hand them over with lockstep.dev/adopt-from", named(names))
}

// alwaysPruned is how many objects may go whatever the fraction, so that a
// small release can lose one of its few; reconciler/apply has the same number.
const alwaysPruned = 5

// pruneGuard holds back a release that would delete much of what there is.
func pruneGuard(f *Facts) []Violation {
	if !f.Prune || f.Target == nil || len(f.Managed) == 0 {
		return nil
	}
	kept := make(map[payload.ObjectID]bool, len(f.Target.Manifests))
	for i := range f.Target.Manifests {
		kept[f.Target.Manifests[i].ID] = true
	}
	var names []string
	for _, id := range f.Managed {
		if !kept[id] {
			names = append(names, id.String())
		}
	}
	const all = 100
	if len(names) <= alwaysPruned || len(names)*all <= f.MaxPruned*len(f.Managed) {
		return nil
	}
	return blocking(PruneGuard, "%d of %d objects would be deleted, more than %d %%: %s; raise spec.prune.maxFraction if that is meant",
		len(names), len(f.Managed), f.MaxPruned, named(names))
}

// unpinnedImage warns of container images that a tag names: what runs may
// change without a release.
func unpinnedImage(f *Facts) []Violation {
	if f.Target == nil {
		return nil
	}
	var names []string
	for i := range f.Target.Manifests {
		m := &f.Target.Manifests[i]
		for _, image := range images(m.Object.Object, 0) {
			if !strings.Contains(image, "@sha256:") {
				names = append(names, fmt.Sprintf("%s in %s", image, m.ID))
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	out := blocking(UnpinnedImage, "images aren't named by digest: %s", named(names))
	out[0].Blocking = false
	return out
}

// maxImageDepth is deeper than any pod template stands in an object.
const maxImageDepth = 12

// images finds the images of containers anywhere in an object, so that custom
// resources with pod templates count too.
func images(v any, depth int) []string {
	if depth > maxImageDepth {
		return nil
	}
	var out []string
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			out = append(out, images(item, depth+1)...)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if key == "containers" || key == "initContainers" || key == "ephemeralContainers" {
				out = append(out, containerImages(v[key])...)
			} else {
				out = append(out, images(v[key], depth+1)...)
			}
		}
	}
	return out
}

func containerImages(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, item := range list {
		container, _ := item.(map[string]any)
		if image, ok := container["image"].(string); ok && image != "" {
			out = append(out, image)
		}
	}
	return out
}
