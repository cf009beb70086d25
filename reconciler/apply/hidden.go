// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// maxNoticed bounds the fields that one line of the log names.
const maxNoticed = 10

// noteFields keeps our fields as they are before a changed manifest is applied,
// if a controller holds some of them too: what leaves the manifest may stay then.
// It costs a read, so objects of which everybody has fields of their own, as most
// have, are left out; if it fails, nothing is told.
func (e *Engine) noteFields(ctx context.Context, j *job) {
	if !j.decision.changed || !j.seen.Shared || !sharedWithControllers(j.seen) {
		return
	}
	if o, err := e.read(ctx, j.t); err == nil {
		j.before = ownFields(o.ManagedFields, e.manager)
	}
}

// sharedWithControllers reports whether somebody who is neither of us nor of
// the people whose fields we take over writes the object itself.
func sharedWithControllers(o *live.Object) bool {
	p := people()
	return slices.ContainsFunc(o.Managers(), func(m live.Manager) bool {
		return m.Subresource == "" && m.Name != initialManager && !strings.HasPrefix(m.Name, live.ManagerPrefix) && !p.writes(m.Name)
	})
}

// ownFields returns what the set's manager holds; nil if that can't be read.
func ownFields(entries []metav1.ManagedFieldsEntry, manager string) *fieldpath.Set {
	for i := range entries {
		if isManager(&entries[i], manager) {
			if set, err := fieldsOf(&entries[i]); err == nil {
				return set
			}
		}
	}
	return nil
}

// notice tells once a manifest what it doesn't make of the object.
func (e *Engine) notice(j *job, answer *metav1.PartialObjectMetadata) {
	if !j.decision.changed {
		return
	}
	log := e.cfg.Log.WithValues("object", j.m.ID.String())
	if altered := alteredByAdmission(j.m, answer); len(altered) > 0 {
		log.Info("admission changed what was applied; that is taken for level", "fields", altered)
	}
	now := ownFields(answer.ManagedFields, e.manager)
	if now == nil {
		log.Info("the server tracks no field of ours on the object, so that fields which leave its manifest stay, and it's never pruned: a webhook may strip managedFields")
		return
	}
	if j.before == nil {
		return
	}
	for manager, fields := range leftInPlace(j.before.Difference(now), answer.ManagedFields) {
		log.Info("fields left the manifest but stay, since another manager holds them", "manager", sanitize.Clip(manager, 100), "fields", fields)
	}
}

// alteredByAdmission returns the labels and annotations of the manifest that
// the object has with another value or not at all. The answer is metadata, so
// more of it can't be compared.
func alteredByAdmission(m *payload.Manifest, answer *metav1.PartialObjectMetadata) []string {
	var out []string
	for prefix, maps := range map[string][2]map[string]string{
		"/metadata/labels/":      {m.Object.GetLabels(), answer.Labels},
		"/metadata/annotations/": {m.Object.GetAnnotations(), answer.Annotations},
	} {
		for key, want := range maps[0] {
			if have, ok := maps[1][key]; !ok || have != want {
				out = append(out, prefix+escape(key))
			}
		}
	}
	slices.Sort(out)
	return out[:min(len(out), maxNoticed)]
}

// leftInPlace returns which of the dropped fields others hold, by manager.
func leftInPlace(dropped *fieldpath.Set, entries []metav1.ManagedFieldsEntry) map[string][]string {
	out := map[string][]string{}
	for i := range entries {
		e := &entries[i]
		if e.Subresource == "status" || e.Manager == initialManager {
			continue
		}
		set, err := fieldsOf(e)
		if err != nil {
			continue // What can't be read holds nothing that can be told.
		}
		for path := range set.Intersection(dropped).Leaves().All() {
			if len(out[e.Manager]) < maxNoticed {
				out[e.Manager] = append(out[e.Manager], path.String())
			}
		}
	}
	return out
}

// noticeOrphans tells which objects leave the inventory and stay.
func (e *Engine) noticeOrphans(orphans []Orphan) {
	for _, o := range orphans {
		e.cfg.Log.Info("the object left the set and stays in the cluster", "object", o.ID.String(), "why", o.Reason)
	}
}
