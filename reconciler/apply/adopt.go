// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// tool is a deployment tool whose objects we may take over.
type tool struct {
	name string
	// managers are the field managers under which it writes; a trailing *
	// stands for any rest.
	managers []string
	// marks are annotations or labels by which it knows its objects.
	marks []string
}

// people are the managers of persons and of one-off commands, and of CVO. What
// they hold is always taken over: else a field that is removed from a
// manifest would stay.
func people() tool {
	return tool{name: "kubectl", managers: []string{"kubectl", "kubectl-*", "before-first-apply", "cluster-version-operator"}}
}

// engines are the tools that go on writing; their objects are taken over only
// when the release says so by spec.adopt.
func engines() []tool {
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

// owns reports whether the tool regards the object as its own.
func (t tool) owns(o *metav1.PartialObjectMetadata) bool {
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

// mayMigrate returns which entries are to become ours, by the tools that the
// release adopts.
func mayMigrate(adopt []string, from string) func(*metav1.ManagedFieldsEntry) bool {
	tools := []tool{people()}
	for _, t := range engines() {
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

// migrate moves the picked entries into that of manager. It returns nil if
// there are none. The union keeps our entry's API version and time; without an
// entry of ours it takes the first picked one's version and no time: the time
// of another's entry would say that we made the object (see madeBy).
func migrate(entries []metav1.ManagedFieldsEntry, manager string, pick func(*metav1.ManagedFieldsEntry) bool) ([]metav1.ManagedFieldsEntry, error) {
	union := fieldpath.NewSet()
	var ours *metav1.ManagedFieldsEntry
	var rest []metav1.ManagedFieldsEntry
	picked := false
	for i := range entries {
		e := entries[i].DeepCopy()
		switch {
		case isManager(e, manager):
			ours = e
		case pick(e):
			picked = true
			if ours == nil {
				ours = &metav1.ManagedFieldsEntry{
					Manager: manager, Operation: metav1.ManagedFieldsOperationApply,
					APIVersion: e.APIVersion, FieldsType: e.FieldsType,
				}
			}
		default:
			rest = append(rest, *e)
			continue
		}
		set, err := fieldsOf(&entries[i])
		if err != nil {
			return nil, err
		}
		union = union.Union(set)
	}
	if !picked {
		return nil, nil
	}
	if err := setFields(ours, union); err != nil {
		return nil, err
	}
	return append(rest, *ours), nil
}

func setFields(e *metav1.ManagedFieldsEntry, set *fieldpath.Set) error {
	raw, err := set.ToJSON()
	if err != nil {
		return fmt.Errorf("encoding the fields of manager %.60q: %w", e.Manager, err)
	}
	fields := &metav1.FieldsV1{}
	fields.SetRawBytes(raw)
	e.FieldsV1, e.FieldsType = fields, "FieldsV1"
	return nil
}

// managedFieldsPatch is a JSON patch that sets the entries if the object is
// still in the given version.
func managedFieldsPatch(entries []metav1.ManagedFieldsEntry, resourceVersion string) ([]byte, error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	return json.Marshal([]operation{
		{"replace", "/metadata/managedFields", entries},
		{"replace", "/metadata/resourceVersion", resourceVersion},
	})
}

// rewriteTries bounds the attempts to rewrite managedFields while others write
// the object, as controllers do to one that was just made; each pause between
// them is longer by rewritePause.
const (
	rewriteTries = 8
	rewritePause = 20 * time.Millisecond
)

// rewriteFields changes who holds the fields of a live object; nothing else of
// it changes. change returns nil if nothing is to be done.
func (e *Engine) rewriteFields(ctx context.Context, id payload.ObjectID, t target, change func(*metav1.PartialObjectMetadata) ([]metav1.ManagedFieldsEntry, error)) error {
	for try := 1; ; try++ {
		o, err := e.read(ctx, t)
		if err != nil {
			return classify(id, err)
		}
		entries, err := change(o)
		if err != nil || entries == nil {
			return classify(id, err)
		}
		body, err := managedFieldsPatch(entries, o.ResourceVersion)
		if err != nil {
			return fmt.Errorf("%s: encoding managed fields: %w", id, err)
		}
		_, _, err = e.wire.patch(ctx, t, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: e.manager})
		e.cfg.Metrics.request("rewrite", outcome(err))
		if err == nil || !apierrors.IsConflict(err) || try == rewriteTries {
			return classify(id, err)
		}
		if !sleep(ctx, time.Duration(try)*rewritePause) {
			return ctx.Err()
		}
	}
}

// firstSight looks at an object that isn't in our inventory before anything
// is written to it. It returns nil if there is none.
func (e *Engine) firstSight(ctx context.Context, m *payload.Manifest, t target) (*metav1.PartialObjectMetadata, error) {
	o, err := e.read(ctx, t)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, classify(m.ID, err)
	}
	if o.DeletionTimestamp != nil {
		return o, nil
	}
	from := adoptFrom(m)
	if err := e.mayAdopt(m.ID, o, from); err != nil {
		return nil, err
	}
	if m.CreateOnly {
		return o, nil // It is left as it is.
	}
	e.mu.RLock()
	pick := mayMigrate(e.adopt, from)
	e.mu.RUnlock()
	return o, e.rewriteFields(ctx, m.ID, t, func(o *metav1.PartialObjectMetadata) ([]metav1.ManagedFieldsEntry, error) {
		return rearranged(o.ManagedFields, e.manager, pick, m)
	})
}

// mayAdopt refuses objects of other sets and of tools that aren't adopted.
func (e *Engine) mayAdopt(id payload.ObjectID, o *metav1.PartialObjectMetadata, from string) error {
	for i := range o.ManagedFields {
		manager := o.ManagedFields[i].Manager
		if owner, ok := strings.CutPrefix(manager, live.ManagerPrefix); ok && manager != e.manager && manager != from {
			return ownedByOther(id, owner)
		}
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, t := range engines() {
		if !slices.Contains(e.adopt, t.name) && t.owns(o) {
			return permanent(id, ReasonOwnedByOther,
				"the object exists and is managed by %s; add %q to spec.adopt to take such objects over, or remove it there first", t.name, t.name)
		}
	}
	return nil
}

func ownedByOther(id payload.ObjectID, owner string) *Error {
	return permanent(id, ReasonOwnedByOther,
		"the object belongs to %.100q; no object may be in two sets: remove it from one, or hand it over with the annotation %s: %s",
		owner, payload.AnnotationAdoptFrom, owner)
}

// adoptFrom returns the manager whose set hands the object over to us, or "".
func adoptFrom(m *payload.Manifest) string {
	owner := m.Object.GetAnnotations()[payload.AnnotationAdoptFrom]
	if owner == "" {
		return ""
	}
	return live.ManagerPrefix + strings.TrimPrefix(owner, live.ManagerPrefix)
}

// hasMigratable reports whether people hold fields of the object by its main
// resource: then a field that leaves the manifest would stay.
func hasMigratable(o *live.Object) bool {
	p := people()
	return slices.ContainsFunc(o.Managers(), func(m live.Manager) bool { return m.Subresource == "" && p.writes(m.Name) })
}
