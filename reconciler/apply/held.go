// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Held is an object as the inventory of a set shows it. The inventory is
// written a moment after what it tells of, so it may be a few seconds old.
type Held struct {
	// Owner is the set, such as "clusterrelease/platform".
	Owner string
	ID    payload.ObjectID
	GVK   schema.GroupVersionKind
	// RunLevel is the manifest's place in its release.
	RunLevel int
	// Created tells that the set made the object: only such are pruned.
	Created bool
	// Applied tells that the set applied the object at least once.
	Applied bool
	// Finished tells of a Job that it completed.
	Finished bool
	// Failed tells of a Job with a TTL that it had failed.
	Failed bool
	// Yields are the fields that are left to others.
	Yields []Yield

	record Record
}

// Manager is the field manager of the set.
func (h *Held) Manager() string { return live.ManagerPrefix + h.Owner }

// Compare says by rule R1 how the live object compares with what the set left;
// nil stands for an object that isn't there. The metadata must be as the
// server sent it: a decoder that reorders managedFields makes all drift.
func (h *Held) Compare(meta metav1.Object) Verdict {
	view := live.View{State: live.Absent, Finished: h.Finished, Failed: h.Failed}
	if meta != nil {
		view = live.View{State: live.Present, Object: live.Summarize(meta)}
	}
	return Compare(h.record, h.GVK.GroupKind(), h.Manager(), view)
}

// heldPage is how many inventory ConfigMaps are read at once.
const heldPage = 50

// FindHeld reads the inventories of all sets and returns those that hold the
// object; no object is in two unless something went wrong. problems tell of
// what couldn't be read. It is for people's tools: it reads everything once.
func FindHeld(ctx context.Context, maps corev1client.ConfigMapInterface, id payload.ObjectID) (held []Held, problems []string, err error) {
	opts := metav1.ListOptions{LabelSelector: labelInventory, Limit: heldPage}
	for {
		list, err := maps.List(ctx, opts)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the inventories: %w", err)
		}
		for i := range list.Items {
			cm := &list.Items[i]
			owner := cm.Data[keyOwner]
			if format, err := strconv.Atoi(cm.Data[keyFormat]); err != nil || format < inventoryFormat-1 || format > inventoryFormat+1 {
				problems = append(problems, fmt.Sprintf("ConfigMap %s has inventory format %.20q, which this version doesn't read", cm.Name, cm.Data[keyFormat]))
				continue
			}
			entries, bad := decodeEntries(cm.Data[keyEntries])
			for _, b := range bad {
				problems = append(problems, fmt.Sprintf("ConfigMap %s: %s", cm.Name, b))
			}
			if at := slices.IndexFunc(entries, func(e entry) bool { return e.id() == id }); at >= 0 {
				held = append(held, heldOf(owner, &entries[at]))
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return held, problems, nil
		}
	}
}

func heldOf(owner string, e *entry) Held {
	return Held{
		Owner: owner, ID: e.id(), GVK: e.gvk(), RunLevel: e.RunLevel,
		Created: e.Created, Applied: e.applied(), Finished: e.Finished, Failed: e.Failed, Yields: slices.Clone(e.Yields), record: e.record(),
	}
}

// HolderOf returns the set whose field manager holds fields of the object, as
// the object itself says; "" if none does.
func HolderOf(meta metav1.Object) string {
	if own := live.Summarize(meta).OwnFields; len(own) > 0 {
		return strings.TrimPrefix(own[0].Manager.Value(), live.ManagerPrefix)
	}
	return ""
}
