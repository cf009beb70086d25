// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// Held is the entry of an object and the set that holds it. The inventory is
// written up to a few seconds after the apply.
type Held struct {
	Entry

	// Owner is the set, such as "clusterrelease/platform".
	Owner string
}

// Manager returns the field manager of the set.
func (h *Held) Manager() string { return live.ManagerPrefix + h.Owner }

// findPage is the number of ConfigMaps per list request.
const findPage = 50

// FindHeld reads the inventories of all sets and returns the entries of one
// object. Normally there is at most one. problems describe the shards and lines
// that couldn't be read. It lists all shards; don't call it in a loop.
func FindHeld(ctx context.Context, client corev1client.ConfigMapInterface, id payload.ObjectID) (held []Held, problems []string, err error) {
	opts := metav1.ListOptions{LabelSelector: labelInventory, Limit: findPage}
	for {
		list, err := client.List(ctx, opts)
		if err != nil {
			return nil, nil, fmt.Errorf("list the inventory ConfigMaps: %w", err)
		}
		for i := range list.Items {
			cm := &list.Items[i]
			if !readable(cm.Data[keyFormat]) {
				problems = append(problems, fmt.Sprintf("ConfigMap %s: inventory format %.20q isn't supported by this version", cm.Name, cm.Data[keyFormat]))
				continue
			}
			entries, bad := decode(cm.Data[keyEntries])
			for _, b := range bad {
				problems = append(problems, fmt.Sprintf("ConfigMap %s: %s", cm.Name, b))
			}
			if at := slices.IndexFunc(entries, func(e Entry) bool { return e.ID() == id }); at >= 0 {
				held = append(held, Held{Entry: entries[at], Owner: cm.Data[keyOwner]})
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return held, problems, nil
		}
	}
}

// readable reports whether this version reads a shard's format.
func readable(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= format-1 && n <= format+1
}
