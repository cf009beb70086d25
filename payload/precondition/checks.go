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

// maxNamed limits the names in one message.
const maxNamed = 5

// joinNames joins at most maxNamed names.
func joinNames(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}

// blocking returns a blocking violation whose reason is its name.
func blocking(name, format string, args ...any) []Violation {
	return []Violation{{Name: name, Reason: name, Message: fmt.Sprintf(format, args...), Blocking: true}}
}

// versions returns the current and the target version. ok is false before the
// first install or if a version is invalid.
func (f *Facts) versions() (current, target semver.Version, ok bool) {
	current, err := version.Parse(f.Current)
	if err != nil || f.Target == nil {
		return current, target, false
	}
	target, err = version.Parse(f.Target.Version)
	return current, target, err == nil
}

// rollback allows a lower version if spec.rollback.to names it, or if it is the
// previous completed version and doesn't downgrade Kubernetes to another minor
// version. Reverting a commit is enough to request the latter.
func rollback(f *Facts) []Violation {
	current, target, ok := f.versions()
	if !ok || f.RollbackTo == f.Target.Version {
		return nil
	}
	if target.GTE(current) {
		return f.rollbackDuringUpdate(target)
	}
	if preceding := f.preceding(); preceding != f.Target.Version {
		return blocking(Rollback, "rollback from %s to %s not allowed: the previous completed version is %s; to allow it, set spec.rollback.to: %s",
			current, target, orNone(preceding), target)
	}
	if why := f.kubernetesDowngrade(current, target); why != "" {
		return blocking(Rollback, "rollback from %s to %s not allowed: %s; rollbacks across a Kubernetes minor version require spec.rollback.to: %s", current, target, why, target)
	}
	return nil
}

// rollbackDuringUpdate blocks a rollback of an incomplete update only if that
// update is known to have updated the API server to another minor version.
// Otherwise users could be stuck in a failing update.
func (f *Facts) rollbackDuringUpdate(target semver.Version) []Violation {
	server, known := f.server()
	applying, err := version.Parse(f.Applying)
	kubernetes, kubernetesErr := version.Parse(f.Target.Kubernetes)
	if err != nil || kubernetesErr != nil || !known || target.GTE(applying) || !before(kubernetes, server) {
		return nil
	}
	return blocking(Rollback, "rollback to %s not allowed: it contains Kubernetes %s, and the update to %s already installed %s; "+
		"update to a patch of %[3]s or set spec.rollback.to: %[1]s", target, kubernetes, applying, server)
}

// kubernetesDowngrade returns why a rollback could downgrade the API server to
// another minor version, or "". If a payload lists component images without a
// Kubernetes version, the product's minor version is compared instead, as in
// OpenShift. Payloads without image-references contain no Kubernetes.
func (f *Facts) kubernetesDowngrade(current, target semver.Version) string {
	server, known := f.server()
	if kubernetes, err := version.Parse(f.Target.Kubernetes); err == nil && known {
		if before(kubernetes, server) {
			return fmt.Sprintf("%s contains Kubernetes %s, and the API server is %s", target, kubernetes, server)
		}
		return ""
	}
	if f.Target.Images != nil && before(target, current) {
		return fmt.Sprintf("%s has another minor version than %s and doesn't declare its Kubernetes version", target, current)
	}
	return ""
}

// before reports whether a has an earlier minor version than b.
func before(a, b semver.Version) bool {
	return a.Major < b.Major || a.Major == b.Major && a.Minor < b.Minor
}

// server returns the version of the API server; false if unknown.
func (f *Facts) server() (semver.Version, bool) {
	running, err := version.Parse(f.APIServer)
	return running, err == nil
}

// preceding returns the newest completed version other than the current one.
func (f *Facts) preceding() string {
	for _, v := range f.Completed {
		if v != f.Current {
			return v
		}
	}
	return ""
}

// incomplete returns the version whose apply began but never completed; false if
// there is none.
func (f *Facts) incomplete() (semver.Version, bool) {
	applying, err := version.Parse(f.Applying)
	return applying, err == nil && f.Current != "" && f.Applying != f.Current
}

// fixes reports whether the target is another patch of the incomplete version. The
// hop to its minor version was permitted when that version was accepted.
func (f *Facts) fixes(target semver.Version) bool {
	incomplete, ok := f.incomplete()
	return ok && sameMinor(incomplete, target)
}

// base returns the version from which the hop to the target is counted: objects
// exist at both the current and the incomplete version, and the older counts.
func (f *Facts) base(current semver.Version) semver.Version {
	if incomplete, ok := f.incomplete(); ok && incomplete.LT(current) {
		return incomplete
	}
	return current
}

// sameMinor reports whether a and b have the same major and minor version.
func sameMinor(a, b semver.Version) bool { return a.Major == b.Major && a.Minor == b.Minor }

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// giantHop blocks updates that start below the release's minimum version or, if
// the release limits them, that skip minor versions or change the major version. A
// patch of an incomplete version isn't limited again, but the minimum applies to
// the current version in any case.
func giantHop(f *Facts) []Violation {
	current, target, ok := f.versions()
	if !ok || target.LT(current) {
		return nil
	}
	base := f.base(current)
	if minimum, err := version.Parse(f.Target.MinimumVersion); err == nil && base.LT(minimum) {
		return blocking(GiantHop, "update from %s to %s not allowed: the release requires at least %s; update to %s first", base, target, minimum, minimum)
	}
	if f.Target.MaxMinorHop == nil || f.fixes(target) {
		return nil
	}
	most := uint64(max(0, *f.Target.MaxMinorHop))
	switch {
	case target.Major != base.Major:
		return blocking(GiantHop, "update from %s to %s not allowed: the major version changes", base, target)
	case target.Minor <= base.Minor || target.Minor-base.Minor <= most:
		return nil
	case most == 0:
		return blocking(GiantHop, "update from %s to %s not allowed: the release allows updates from %d.%d only (maxMinorHop 0)", base, target, target.Major, target.Minor)
	default:
		return blocking(GiantHop, "update from %s to %s not allowed: minor versions are skipped; update to %d.%d first", base, target, base.Major, base.Minor+most)
	}
}

// upgradeable blocks minor and major updates while an object reports
// Upgradeable=False. For patches, also of an incomplete version, it is a warning.
func upgradeable(f *Facts) []Violation {
	current, target, ok := f.versions()
	if !ok || target.LTE(current) {
		return nil
	}
	patch := sameMinor(target, current) || f.fixes(target)
	var names []string
	for _, b := range f.Blockers {
		names = append(names, fmt.Sprintf("%s (%s: %s)", b.Name, b.Reason, b.Message))
	}
	if !patch {
		names = append(names, f.laggingKubelets()...)
	}
	var out []Violation
	if len(names) > 0 {
		out = blocking(Upgradeable, "%s not upgradeable: %s", current, joinNames(names))
		out[0].Blocking = !patch
		out[0].Retriable = true
	}
	if f.Deleting != "" {
		// It may never end, and the update may be the fix.
		out = append(out, Violation{Name: Upgradeable, Reason: "ResourceDeletionInProgress", Message: f.Deleting, Retriable: true})
	}
	return out
}

// laggingKubelets reports nodes whose kubelets are as old as the API server
// supports, if the target doesn't declare its Kubernetes version and could update
// the API server.
func (f *Facts) laggingKubelets() []string {
	server, known := f.server()
	if !known || f.Target.Kubernetes != "" {
		return nil
	}
	var nodes []string
	for _, node := range slices.Sorted(maps.Keys(f.Kubelets)) {
		kubelet, err := version.Parse(f.Kubelets[node])
		if err == nil && kubelet.Major == server.Major && kubelet.Minor+maxKubeletSkew <= server.Minor {
			nodes = append(nodes, fmt.Sprintf("%s (%s)", node, kubelet))
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("kubelets too old for an API server newer than %s: %s; update them first with a patch or their NodeOS", server, joinNames(nodes))}
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
	return blocking(VersionFloor, "version %s not allowed: the trust policy's floor for %s is %s", target, f.Target.Product, floor)
}

// maxKubeletSkew is the number of minor versions that a kubelet may be older than
// the API server (kubernetes.io, version skew policy).
const maxKubeletSkew = 3

// hostSkew compares the kubelets with the API server of the target. If the target
// doesn't declare its Kubernetes version, they are compared with the current API
// server and violations are warnings, since the target may fix them.
func hostSkew(f *Facts) []Violation {
	server, known := f.server()
	if !known {
		return nil
	}
	where, certain := "the API server", false
	if f.Target != nil {
		if kubernetes, err := version.Parse(f.Target.Kubernetes); err == nil {
			server, where, certain = kubernetes, "the release's API server", true
		}
	}
	var newer, older []string
	for _, node := range slices.Sorted(maps.Keys(f.Kubelets)) {
		kubelet, err := version.Parse(f.Kubelets[node])
		switch {
		case err != nil:
		case before(server, kubelet):
			newer = append(newer, fmt.Sprintf("%s (%s)", node, kubelet))
		case server.Major == kubelet.Major && server.Minor-kubelet.Minor > maxKubeletSkew:
			older = append(older, fmt.Sprintf("%s (%s)", node, kubelet))
		}
	}
	var out []Violation
	if len(newer) > 0 {
		out = append(out, blocking(HostSkew, "kubelets newer than %s (%s): %s", where, server, joinNames(newer))...)
	}
	if len(older) > 0 {
		out = append(out, blocking(HostSkew, "kubelets more than %d minor versions older than %s (%s): %s; update those hosts first",
			maxKubeletSkew, where, server, joinNames(older))...)
	}
	for i := range out {
		out[i].Blocking, out[i].Retriable = certain, true
	}
	return out
}

// apiRemoval finds kinds that neither the API server nor the payload provides. If
// the payload contains an API service for the group and version, its kinds are
// unknown until it runs, and the violation is a warning.
func apiRemoval(f *Facts) []Violation {
	if f.Serves == nil || f.Target == nil {
		return nil
	}
	provided := payload.Provides(f.Target.Manifests, f.Unmanaged)
	seen := map[string]bool{}
	var missing, pending []string
	for i := range f.Target.Manifests {
		m := &f.Target.Manifests[i]
		name := m.GVK.GroupVersion().String() + " " + m.GVK.Kind
		if m.Delete || f.Unmanaged[m.ID] || seen[name] || provided.Served(m.GVK) {
			continue
		}
		seen[name] = true
		switch at := fmt.Sprintf("%s (%s:%d)", name, m.File, m.Line); {
		case provided.Kind(m.GVK.GroupKind()):
			missing = append(missing, at+" (the CRD in the release doesn't serve this version)")
		case f.Serves(m.GVK):
		case provided.Registered(m.GVK.GroupVersion()):
			pending = append(pending, at)
		default:
			missing = append(missing, at)
		}
	}
	var out []Violation
	if len(missing) > 0 {
		out = blocking(APIRemoval, "kinds not served: %s; install their CRDs first, or set the objects to unmanaged in spec.overrides", joinNames(missing))
		out[0].Retriable = true // Another release may provide the kinds.
	}
	if len(pending) > 0 {
		out = append(out, blocking(APIRemoval, "kinds not served yet: %s; checked again once the API service in the release runs", joinNames(pending))...)
		out[len(out)-1].Blocking = false
	}
	return out
}

// storedVersions finds CRDs that drop a stored version. The API server would
// reject them during the update.
func storedVersions(f *Facts) []Violation {
	if f.Target == nil {
		return nil
	}
	var names []string
	for i := range f.Target.Manifests {
		m := &f.Target.Manifests[i]
		stored := f.StoredVersions[m.ID.Name]
		if !m.IsCRD() || f.Unmanaged[m.ID] || len(stored) == 0 {
			continue
		}
		defined := m.CRDVersions()
		for _, version := range stored {
			if !slices.Contains(defined, version) {
				names = append(names, fmt.Sprintf("%s drops %s", m.ID.Name, version))
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	return blocking(StoredVersions, "stored CRD versions dropped by the release: %s; migrate the objects and remove the versions from status.storedVersions", joinNames(names))
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
	out := blocking(OwnedByOther, "objects owned by another release or source: %s; remove them from its payload; if it left Git, add it to spec.adopt", joinNames(names))
	out[0].Retriable = true // The other release may drop them in the same commit.
	return out
}

// pruneGuard blocks releases that would delete more objects than allowed. The
// prune applies the same rule.
func pruneGuard(f *Facts) []Violation {
	if !f.Prune || f.Target == nil {
		return nil
	}
	remaining := make(map[payload.ObjectID]bool, len(f.Target.Manifests))
	for i := range f.Target.Manifests {
		remaining[f.Target.Manifests[i].ID] = true
	}
	var names []string
	for _, id := range f.Prunable {
		if !remaining[id] {
			names = append(names, id.String())
		}
	}
	allowed, ok := payload.MayPrune(payload.PruneCount{Deleted: len(names), Kept: len(remaining), Total: f.Managed}, f.MaxPruned)
	switch {
	case ok:
		return nil
	case len(remaining) == 0:
		return blocking(PruneGuard, "the release has no objects, but %d are managed; to delete all of them, delete the ClusterRelease with deletionPolicy: Prune", f.Managed)
	default:
		return blocking(PruneGuard, "prune of %d of %d objects not allowed: the limit is %d (%d%%): %s; to allow it, raise spec.prune.maxPercent",
			len(names), f.Managed, allowed, f.MaxPruned, joinNames(names))
	}
}

// manifestOrder blocks releases whose order can't work in the cluster. Objects that
// are created meanwhile can change that.
func manifestOrder(f *Facts) []Violation {
	if len(f.Order) == 0 {
		return nil
	}
	lines := f.Order[:min(len(f.Order), maxNamed)]
	text := strings.Join(lines, "; ")
	if more := len(f.Order) - len(lines); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	out := blocking(ManifestOrder, "the order of the manifests can't work: %s", text)
	out[0].Retriable = true
	return out
}

// recommendedUpdate warns about updates from versions that the release doesn't
// list in its metadata.
func recommendedUpdate(f *Facts) []Violation {
	current, target, ok := f.versions()
	if !ok || target.LTE(current) || len(f.Target.Previous) == 0 || slices.Contains(f.Target.Previous, f.Current) ||
		f.fixes(target) && slices.Contains(f.Target.Previous, f.Applying) {
		return nil
	}
	out := blocking(RecommendedUpdate, "update from %s to %s not recommended: the release lists updates from %s", current, target, joinNames(f.Target.Previous))
	out[0].Blocking = false
	return out
}

// unpinnedImage warns about container images without a digest. Their content may
// change without a new release.
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
	out := blocking(UnpinnedImage, "images not pinned by digest: %s", joinNames(names))
	out[0].Blocking = false
	return out
}

// maxImageDepth limits the search for pod templates in an object.
const maxImageDepth = 12

// images finds the container images in an object, including custom resources with
// pod templates.
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
