// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package precondition

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/blang/semver/v4"

	"github.com/lockstep-dev/lockstep/config/version"
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
	current, err := version.Parse(f.Current)
	if err != nil || f.Target == nil {
		return current, target, false
	}
	target, err = version.Parse(f.Target.Version)
	return current, target, err == nil
}

// rollback allows a lower version only if the owner named it, or if it is the
// one that was level before the current one and doesn't lead Kubernetes back
// across a minor version: a reverted commit is the request.
func rollback(f *Facts) []Violation {
	current, target, ok := f.versions()
	if !ok || f.RollbackTo == f.Target.Version {
		return nil
	}
	if target.GTE(current) {
		return f.retreat(target)
	}
	if preceding := f.preceding(); preceding != f.Target.Version {
		return blocking(Rollback, "%s is older than %s and isn't the release before it (%s); set spec.rollback.to: %s to go back to it",
			target, current, orNone(preceding), target)
	}
	if why := f.crossesBack(current, target); why != "" {
		return blocking(Rollback, "%s, and Kubernetes doesn't go back across a minor version; if that is what is wanted all the same, set spec.rollback.to: %s", why, target)
	}
	return nil
}

// retreat holds back the way from an update that didn't end to what was level
// before it, only if that update has moved the API server for sure: to strand
// people in it on a guess would be worse.
func (f *Facts) retreat(target semver.Version) []Violation {
	server, known := f.server()
	applying, err := version.Parse(f.Applying)
	carried, unsaid := version.Parse(f.Target.Kubernetes)
	if err != nil || unsaid != nil || !known || target.GTE(applying) || !before(carried, server) {
		return nil
	}
	return blocking(Rollback, "%s carries Kubernetes %s, and %s, which is being applied, has brought %s already; Kubernetes doesn't go back across a minor version: "+
		"go on to a patch of %[3]s, or set spec.rollback.to: %[1]s", target, carried, applying, server)
}

// crossesBack says why going back to the target would, or might, move the API
// server to an earlier minor version; "" if it doesn't. Where a payload names
// its component images and doesn't say which Kubernetes is among them, the
// product's own minor version stands for it, as in OpenShift; a payload without
// such a list carries no Kubernetes.
func (f *Facts) crossesBack(current, target semver.Version) string {
	server, known := f.server()
	if carried, err := version.Parse(f.Target.Kubernetes); err == nil && known {
		if before(carried, server) {
			return fmt.Sprintf("%s carries Kubernetes %s, and %s runs", target, carried, server)
		}
		return ""
	}
	if f.Target.Images != nil && before(target, current) {
		return fmt.Sprintf("%s is of another minor version than %s and doesn't say which Kubernetes it carries", target, current)
	}
	return ""
}

// before reports whether a is of an earlier minor version than b.
func before(a, b semver.Version) bool {
	return a.Major < b.Major || a.Major == b.Major && a.Minor < b.Minor
}

// server is the version of the API server, if it's known.
func (f *Facts) server() (semver.Version, bool) {
	running, err := version.Parse(f.APIServer)
	return running, err == nil
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
	if minimum, err := version.Parse(f.Target.MinimumVersion); err == nil && current.LT(minimum) {
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
	if !ok || target.LTE(current) {
		return nil
	}
	patch := target.Major == current.Major && target.Minor == current.Minor
	var names []string
	for _, b := range f.Blockers {
		names = append(names, fmt.Sprintf("%s (%s: %s)", b.Name, b.Reason, b.Message))
	}
	if !patch {
		names = append(names, f.lagging()...)
	}
	if len(names) == 0 {
		return nil
	}
	out := blocking(Upgradeable, "%s can't be upgraded now: %s", current, named(names))
	out[0].Blocking = !patch
	out[0].Retriable = true
	return out
}

// lagging says that hosts have kubelets as old as the API server allows, if the
// target may raise that: it doesn't say which Kubernetes it carries, and is no
// patch.
func (f *Facts) lagging() []string {
	server, known := f.server()
	if !known || f.Target.Kubernetes != "" {
		return nil
	}
	var nodes []string
	for _, node := range slices.Sorted(maps.Keys(f.Kubelets)) {
		kubelet, err := version.Parse(f.Kubelets[node])
		if err == nil && kubelet.Major == server.Major && kubelet.Minor+maxKubeletAge <= server.Minor {
			nodes = append(nodes, fmt.Sprintf("%s (%s)", node, kubelet))
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("hosts with kubelets that are too old for a newer API server than %s: %s; update them by a patch or by their NodeOS first", server, named(nodes))}
}

func versionFloor(f *Facts) []Violation {
	floor, err := version.Parse(f.Floor)
	if err != nil || f.Target == nil {
		return nil
	}
	target, err := version.Parse(f.Target.Version)
	if err != nil || target.GTE(floor) {
		return nil
	}
	return blocking(VersionFloor, "%s is below %s, the lowest version of %s that the trust policy accepts", target, floor, f.Target.Product)
}

// maxKubeletAge is how many minor versions a kubelet may be older than its
// API server (kubernetes.io, version skew policy).
const maxKubeletAge = 3

// hostSkew compares the kubelets with the API server as the target would leave
// it. If the target doesn't say which Kubernetes it carries, what is amiss now
// is only told: it may be what the target mends.
func hostSkew(f *Facts) []Violation {
	server, known := f.server()
	if !known {
		return nil
	}
	where, decided := "the API server is", false
	if f.Target != nil {
		if carried, err := version.Parse(f.Target.Kubernetes); err == nil {
			server, where, decided = carried, "the release's API server is", true
		}
	}
	var newer, older []string
	for _, node := range slices.Sorted(maps.Keys(f.Kubelets)) {
		kubelet, err := version.Parse(f.Kubelets[node])
		switch {
		case err != nil:
		case before(server, kubelet):
			newer = append(newer, fmt.Sprintf("%s (%s)", node, kubelet))
		case server.Major == kubelet.Major && server.Minor-kubelet.Minor > maxKubeletAge:
			older = append(older, fmt.Sprintf("%s (%s)", node, kubelet))
		}
	}
	var out []Violation
	if len(newer) > 0 {
		out = append(out, blocking(HostSkew, "kubelets may not be newer than the API server; %s %s, and newer are %s", where, server, named(newer))...)
	}
	if len(older) > 0 {
		out = append(out, blocking(HostSkew, "kubelets may be %d minor versions older than the API server; %s %s, and too old for it are %s: bring those hosts along first",
			maxKubeletAge, where, server, named(older))...)
	}
	for i := range out {
		out[i].Blocking, out[i].Retriable = decided, true
	}
	return out
}

// apiRemoval names kinds that the server doesn't know and that nothing in the
// payload brings. Of a kind whose API service comes along nobody knows before
// that runs.
func apiRemoval(f *Facts) []Violation {
	if f.Serves == nil || f.Target == nil {
		return nil
	}
	brought := payload.Provides(f.Target.Manifests, f.Unmanaged)
	seen := map[string]bool{}
	var missing, later []string
	for i := range f.Target.Manifests {
		m := &f.Target.Manifests[i]
		name := m.GVK.GroupVersion().String() + " " + m.GVK.Kind
		if m.Delete || f.Unmanaged[m.ID] || seen[name] || brought.Served(m.GVK) {
			continue
		}
		seen[name] = true
		switch at := fmt.Sprintf("%s (%s:%d)", name, m.File, m.Line); {
		case brought.Kind(m.GVK.GroupKind()):
			missing = append(missing, at+", whose definition in the release doesn't serve this version")
		case f.Serves(m.GVK):
		case brought.Registered(m.GVK.GroupVersion()):
			later = append(later, at)
		default:
			missing = append(missing, at)
		}
	}
	var out []Violation
	if len(missing) > 0 {
		out = blocking(APIRemoval, "the API server doesn't serve %s, and the release doesn't bring them; install what defines them first, or leave the objects to people by spec.overrides", named(missing))
		out[0].Retriable = true // What brings them may come from another release.
	}
	if len(later) > 0 {
		out = append(out, blocking(APIRemoval, "the API server doesn't serve %s yet; whether the API service in the release will is seen when it runs", named(later))...)
		out[len(out)-1].Blocking = false
	}
	return out
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
		if !m.Defines() || f.Unmanaged[m.ID] || len(stored) == 0 {
			continue
		}
		kept := m.DefinedVersions()
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

func ownedByOther(f *Facts) []Violation {
	var names []string
	for _, id := range slices.SortedFunc(maps.Keys(f.Owners), payload.ObjectID.Compare) {
		if !f.Unmanaged[id] {
			names = append(names, fmt.Sprintf("%s (%s)", id, f.Owners[id]))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return blocking(OwnedByOther, "objects belong to another set: %s; remove them there, or hand them over with lockstep.dev/adopt-from", named(names))
}

// pruneGuard holds back a release that would delete much of what there is; the
// engine refuses by the same rule.
func pruneGuard(f *Facts) []Violation {
	if !f.Prune || f.Target == nil {
		return nil
	}
	kept := make(map[payload.ObjectID]bool, len(f.Target.Manifests))
	for i := range f.Target.Manifests {
		kept[f.Target.Manifests[i].ID] = true
	}
	var names []string
	for _, id := range f.Prunable {
		if !kept[id] {
			names = append(names, id.String())
		}
	}
	allowed, ok := payload.MayPrune(payload.Leaving{Deleted: len(names), Kept: len(kept), Total: f.Managed}, f.MaxPruned)
	switch {
	case ok:
		return nil
	case len(kept) == 0:
		return blocking(PruneGuard, "the release has no objects, and %d are managed; to delete them all, delete the ClusterRelease with deletionPolicy: Prune", f.Managed)
	default:
		return blocking(PruneGuard, "%d of %d objects would be deleted, and %d %% allow %d: %s; raise spec.prune.maxPercent if that is meant",
			len(names), f.Managed, f.MaxPruned, allowed, named(names))
	}
}

// recommendedUpdate warns of an update that whoever made the release doesn't
// name among those that it was made for.
func recommendedUpdate(f *Facts) []Violation {
	current, target, ok := f.versions()
	if !ok || target.LTE(current) || len(f.Target.Previous) == 0 || slices.Contains(f.Target.Previous, f.Current) {
		return nil
	}
	out := blocking(RecommendedUpdate, "%s isn't among the versions that %s names as its predecessors (%s)", current, target, named(f.Target.Previous))
	out[0].Blocking = false
	return out
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
		if f.Unmanaged[m.ID] {
			continue
		}
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
