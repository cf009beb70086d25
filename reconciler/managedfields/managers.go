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
// managers, of the tools in adopt (helm, flux, argo), and of the manager from if
// that isn't "".
func Adoptable(adopt []string, from string) Pick {
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
		if from != "" && e.Manager == from {
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

// OtherSet returns the owner of the first set that has a field manager on the
// object other than manager and from. It returns false if there is none.
func OtherSet(entries []metav1.ManagedFieldsEntry, manager, from string) (owner string, found bool) {
	for i := range entries {
		name := entries[i].Manager
		if owner, ok := strings.CutPrefix(name, live.ManagerPrefix); ok && name != manager && name != from {
			return owner, true
		}
	}
	return "", false
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
