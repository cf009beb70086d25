// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// tool is a deployment tool whose objects a release may adopt.
type tool struct {
	name string
	// managers are its field managers; a trailing * matches any suffix.
	managers []string
	// marks are the annotations or labels by which it identifies its objects.
	marks []string
}

// interactive returns the field managers of users and one-off commands, and of
// CVO. Their fields are always taken over; otherwise a field that is removed
// from a manifest would stay.
func interactive() tool {
	return tool{name: "kubectl", managers: []string{"kubectl", "kubectl-*", "before-first-apply", "cluster-version-operator"}}
}

// continuous returns the tools that keep reconciling their objects, so that
// adopting those requires spec.adopt.
func continuous() []tool {
	return []tool{
		{"helm", []string{"helm", "Helm"}, []string{"meta.helm.sh/release-name"}},
		{
			"flux",
			[]string{"kustomize-controller", "helm-controller", "flux", "flux-*"},
			[]string{"kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name"},
		},
		{
			"argo",
			[]string{"argocd", "argocd-*"},
			[]string{"argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance"},
		},
	}
}

func (t tool) writes(manager string) bool {
	for _, m := range t.managers {
		if prefix, wild := strings.CutSuffix(m, "*"); m == manager || wild && strings.HasPrefix(manager, prefix) {
			return true
		}
	}
	return false
}

// manages reports whether the tool regards the object as its own.
func (t tool) manages(o *metav1.PartialObjectMetadata) bool {
	for i := range o.ManagedFields {
		if e := &o.ManagedFields[i]; e.Subresource == "" && t.writes(e.Manager) {
			return true
		}
	}
	for _, mark := range t.marks {
		if o.Annotations[mark] != "" || o.Labels[mark] != "" {
			return true
		}
	}
	return false
}

// Interactive reports whether manager belongs to a user or a one-off command.
func Interactive(manager string) bool { return interactive().writes(manager) }

// Adoptable selects the entries that a release takes over: those of interactive
// managers, of the tools in adopt (helm, flux, argo), and of the sets with the
// owners givers.
func Adoptable(adopt []string, givers ...string) Pick {
	tools := []tool{interactive()}
	for _, t := range continuous() {
		if slices.Contains(adopt, t.name) {
			tools = append(tools, t)
		}
	}
	return func(e *metav1.ManagedFieldsEntry) bool {
		if e.Subresource != "" {
			return false
		}
		if owner, ok := strings.CutPrefix(e.Manager, live.ManagerPrefix); ok && slices.Contains(givers, owner) {
			return true
		}
		return slices.ContainsFunc(tools, func(t tool) bool { return t.writes(e.Manager) })
	}
}

// NotAdopted returns the tool that manages the object and isn't in adopt; "" if
// there is none.
func NotAdopted(o *metav1.PartialObjectMetadata, adopt []string) string {
	for _, t := range continuous() {
		if !slices.Contains(adopt, t.name) && t.manages(o) {
			return t.name
		}
	}
	return ""
}

// OtherSets returns the owners of the sets other than manager's that have a field
// manager on the object, without repetition.
func OtherSets(entries []metav1.ManagedFieldsEntry, manager string) (owners []string) {
	for i := range entries {
		owner, ok := strings.CutPrefix(entries[i].Manager, live.ManagerPrefix)
		if ok && entries[i].Manager != manager && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	return owners
}

// WrittenInteractively reports whether an interactive manager owns fields of the
// object's main resource.
func WrittenInteractively(o *live.Object) bool {
	return hasManager(o, func(m live.Manager) bool { return m.Subresource == "" && Interactive(m.Name) })
}

// WrittenByControllers reports whether a controller outside Lockstep owns fields
// of the object's main resource.
func WrittenByControllers(o *live.Object) bool {
	return hasManager(o, func(m live.Manager) bool {
		return m.Subresource == "" && m.Name != InitialManager && !strings.HasPrefix(m.Name, live.ManagerPrefix) && !Interactive(m.Name)
	})
}

// ScaledByControllers reports whether a controller owns fields that it set
// through the scale subresource.
func ScaledByControllers(o *live.Object) bool {
	return hasManager(o, func(m live.Manager) bool { return m.Subresource == "scale" && !Interactive(m.Name) })
}

func hasManager(o *live.Object, match func(live.Manager) bool) bool {
	return slices.ContainsFunc(o.Managers(), match)
}
