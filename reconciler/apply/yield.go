// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/reconciler/live"
)

// maxYields bounds the fields of one object that are left to others.
const maxYields = 20

// yield looks who took the fields of a drifted object. What was taken through
// the scale subresource is left to its taker (an autoscaler); what another
// controller takes again and again is too, once the contest is plain. What a
// person did, by whatever way, is drift.
func (e *Engine) yield(ctx context.Context, j *job) error {
	e.mu.RLock()
	contest := j.it.pace.contests >= contestsAtOnce
	e.mu.RUnlock()
	if !contest && !isScaled(j.seen) {
		return nil
	}
	o, err := e.read(ctx, j.t)
	if err != nil {
		return classify(j.m.ID, err)
	}
	p := people()
	lost := lostFields(o.ManagedFields, e.manager, j.m.Object.Object, func(en *metav1.ManagedFieldsEntry) bool {
		return !p.writes(en.Manager) && (en.Subresource == "scale" || contest && en.Subresource == "")
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	added := 0
	var to []string
	for _, l := range lost {
		known := slices.ContainsFunc(j.it.entry.Yields, func(y Yield) bool { return y.Pointer == l.pointer })
		if known || len(j.it.entry.Yields) >= maxYields {
			continue
		}
		j.it.entry.Yields = append(j.it.entry.Yields, Yield{Pointer: l.pointer, Manager: l.manager, Value: digestOf(l.value)})
		added++
		to = append(to, l.pointer+" to "+l.manager)
	}
	if added > 0 {
		e.tell(j.it.id, ReasonFieldYielded, strings.Join(to, ", "))
		e.store.touch(j.it)
		e.cfg.Metrics.yielded(added)
	}
	return nil
}

// isScaled reports whether a controller holds fields through the scale
// subresource.
func isScaled(o *live.Object) bool {
	p := people()
	return slices.ContainsFunc(o.Managers(), func(m live.Manager) bool { return m.Subresource == "scale" && !p.writes(m.Name) })
}

// reconsiderYields takes fields back that the manifest insists on, that it no
// longer has, or whose value it changed.
func (e *Engine) reconsiderYields(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	en := &j.it.entry
	if len(en.Yields) == 0 {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(en.Yields), func(y Yield) bool {
		val, there := at(j.m.Object.Object, y.Pointer)
		return j.m.ForceFields || !there || digestOf(val) != y.Value || !j.exists
	})
	if len(kept) != len(en.Yields) {
		en.Yields = kept
		e.store.touch(j.it)
	}
}

// giveUp settles the fields that are left to others, by what the answer says:
// a yielded field that nobody holds any more is taken back, as is one that was
// handed over and isn't others' any more, and ignored fields of an object that we
// created are handed over.
func (e *Engine) giveUp(ctx context.Context, j *job, answer *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	back, err := e.takeBack(ctx, j, answer)
	if err != nil {
		return nil, err
	}
	if e.dropYields(j, answer) || back {
		body, err := e.body(j)
		if err != nil {
			return nil, err
		}
		if answer, err = e.patch(ctx, j, body); err != nil {
			return nil, err
		}
	}
	if !j.created || len(j.m.IgnoreFields) == 0 {
		return answer, nil
	}
	err = e.rewriteFields(ctx, j.m.ID, j.t, func(o *metav1.PartialObjectMetadata) ([]metav1.ManagedFieldsEntry, error) {
		return handOver(o.ManagedFields, e.manager, j.m.Object.Object, j.m.IgnoreFields)
	})
	if err != nil {
		return nil, err
	}
	after, err := e.read(ctx, j.t)
	return after, classify(j.m.ID, err)
}

// dropYields forgets the yields whose field nobody holds. It reports whether
// there were any.
func (e *Engine) dropYields(j *job, answer *metav1.PartialObjectMetadata) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	en := &j.it.entry
	if len(en.Yields) == 0 {
		return false
	}
	holders := lostFields(answer.ManagedFields, e.manager, j.m.Object.Object, func(*metav1.ManagedFieldsEntry) bool { return true })
	kept := slices.DeleteFunc(slices.Clone(en.Yields), func(y Yield) bool {
		return !slices.ContainsFunc(holders, func(h held) bool { return h.pointer == y.Pointer })
	})
	dropped := len(kept) != len(en.Yields)
	en.Yields = kept
	return dropped
}

func digestOf(value any) live.Digest {
	raw, err := json.Marshal(value)
	if err != nil {
		return live.Digest{} // A manifest's values were decoded from JSON.
	}
	full := sha256.Sum256(raw)
	return live.Digest(full[:live.DigestSize])
}

// comparePointers orders JSON pointers by their tokens, numbers as such.
func comparePointers(a, b string) int {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	return slices.CompareFunc(x, y, func(s, t string) int {
		i, errI := strconv.Atoi(s)
		k, errK := strconv.Atoi(t)
		if errI == nil && errK == nil {
			return cmp.Compare(i, k)
		}
		return cmp.Compare(s, t)
	})
}
