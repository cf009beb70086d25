// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// editsEach is the number of objects of a kind that are edited in a round,
// each once: repeated edits of one object are a contest, which is repaired
// with backoff.
const editsEach = 3

// repairRows edits one object after the other as another manager, and waits
// until the engine's repair is answered.
func repairRows(ctx context.Context, b *bench) ([]result, error) {
	var took []float64
	kinds := len(workload.Editables())
	rounds := min(b.rounds, fewRounds)
	for round := range rounds {
		b.log("repair: round %d of %d", round+1, rounds)
		if err := b.onPlane(ctx, func(p *plane) error {
			some, err := repairRound(ctx, p)
			took = append(took, some...)
			return err
		}); err != nil {
			return nil, err
		}
	}
	what := fmt.Sprintf("edit → repaired, %d kinds, %d edits", kinds, len(took))
	return []result{
		shown(what+": p50", median(took), "ms", ""),
		shown(what+": p95", quantile(took, 0.95), "ms", "Flux: its interval; CVO: up to 4.7 min").atMost(50),
	}, nil
}

func repairRound(ctx context.Context, p *plane) ([]float64, error) {
	var objects []workload.Object
	for i := range editsEach {
		for _, e := range workload.Editables() {
			o, err := e.Make(i, "edits")
			if err != nil {
				return nil, err
			}
			objects = append(objects, o)
		}
	}
	if err := p.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: edits}\n")); err != nil {
		return nil, err
	}
	ms, err := workload.Manifests(objects)
	if err != nil {
		return nil, err
	}
	byID := map[payload.ObjectID]*payload.Manifest{}
	for i := range ms {
		byID[ms[i].ID] = &ms[i]
	}
	repaired := make(chan payload.ObjectID, len(ms))
	o, err := startOurs(ctx, p.Config, "repair", func(ctx context.Context, e *apply.Engine, id payload.ObjectID) {
		if change, err := e.Apply(ctx, byID[id], apply.Reconciling); err == nil && change.Action == apply.Repaired {
			repaired <- id
		}
	})
	if err != nil {
		return nil, err
	}
	defer o.close()
	if _, err := o.pass(ctx, ms, payload.Initializing, true); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	return edit(ctx, p, ms, repaired)
}

// edit changes each object once. The time runs from before the edit is sent
// until the repair is answered.
func edit(ctx context.Context, p *plane, ms []payload.Manifest, repaired <-chan payload.ObjectID) ([]float64, error) {
	client, err := dynamic.NewForConfig(p.Config)
	if err != nil {
		return nil, fmt.Errorf("client that edits: %w", err)
	}
	kinds := workload.Editables()
	var took []float64
	for i := range ms {
		e := kinds[i%len(kinds)]
		body, err := e.Patch()
		if err != nil {
			return nil, err
		}
		resource := client.Resource(ms[i].GVK.GroupVersion().WithResource(e.Resource)).Namespace(ms[i].ID.Namespace)
		began := time.Now()
		var edited *unstructured.Unstructured
		if edited, err = resource.Patch(ctx, ms[i].ID.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
			return nil, fmt.Errorf("edit %s: %w", ms[i].ID, err)
		}
		select {
		case id := <-repaired:
			if id != ms[i].ID {
				return nil, fmt.Errorf("%s was repaired though %s was edited", id, ms[i].ID)
			}
			took = append(took, milliseconds(time.Since(began)))
		case <-time.After(10 * time.Second):
			return nil, fmt.Errorf("%s was edited (resource version %s) and not repaired in ten seconds", ms[i].ID, edited.GetResourceVersion())
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return took, nil
}
