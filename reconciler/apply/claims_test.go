// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
)

// sibling returns another set of the same process and namespace.
func (env *testEnv) sibling(name string) *testEnv {
	env.t.Helper()
	out := &testEnv{
		t: env.t, cluster: env.cluster, ns: env.ns, owner: env.owner + "-" + name, kube: env.kube, dynamic: env.dynamic,
		shared: env.shared, applied: map[payload.ObjectID]payload.Manifest{},
	}
	out.start()
	env.t.Cleanup(out.crash)
	return out
}

// restartAll ends the process of the sets and starts it again, in their order.
func restartAll(sets ...*testEnv) {
	shared := NewShared(DefaultConcurrency)
	for _, env := range sets {
		env.crash()
		env.shared = shared
	}
	for _, env := range sets {
		env.start()
	}
}

// movingMaps are a ConfigMap that moves and one that stays.
const movingMaps = `
apiVersion: v1
kind: ConfigMap
metadata: {name: moves, namespace: NS}
data: {a: "1", stale: x}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: stays, namespace: NS}
data: {a: "1"}
`

// handoverEnv is a giver that has applied two objects, and a taker whose manifest
// of the first one lacks a field.
type handoverEnv struct {
	giver, taker *testEnv
	all, rest    []payload.Manifest
	wanted       []payload.Manifest
	uid          string
}

func newHandover(t *testing.T) *handoverEnv {
	t.Helper()
	h := &handoverEnv{giver: newEnv(t)}
	h.taker = h.giver.sibling("next")
	h.all = h.giver.manifests(movingMaps)
	h.rest = h.all[1:]
	h.wanted = h.giver.manifests(strings.Replace(movingMaps, ", stale: x", "", 1))[:1]
	h.giver.apply(h.all, Updating)
	h.uid = string(h.giver.get(h.all[0].ID).GetUID())
	return h
}

// id is the object that moves.
func (h *handoverEnv) id() payload.ObjectID { return h.all[0].ID }

// wantTaken checks that the object belongs to the taker alone, which may prune it,
// and that nobody deleted it.
func (h *handoverEnv) wantTaken(t *testing.T) {
	t.Helper()
	for _, env := range []*testEnv{h.giver, h.taker} {
		for _, r := range env.requests.take() {
			if strings.HasPrefix(r, "DELETE") {
				t.Errorf("%s sent %s", env.owner, r)
			}
		}
	}
	o := h.giver.get(h.id())
	if string(o.GetUID()) != h.uid {
		t.Errorf("UID %s, want %s: the object was replaced", o.GetUID(), h.uid)
	}
	if data, _ := o.Object["data"].(map[string]any); len(data) != 1 {
		t.Errorf("data %v: a field of the giver stays", data)
	}
	for _, e := range o.GetManagedFields() {
		if e.Manager != h.taker.engine.Manager() {
			t.Errorf("%s still has fields", e.Manager)
		}
	}
	if made := h.giver.engine.Made(); slices.Contains(made, h.id()) {
		t.Errorf("the giver's inventory has %v", made)
	}
	must(t, h.taker.engine.Flush(t.Context()))
	restartAll(h.taker, h.giver)
	result, err := h.taker.engine.Prune(t.Context(), nil, PruneOptions{All: true})
	must(t, err)
	if h.giver.exists(h.id()) || len(result.Deleted) != 1 {
		t.Errorf("%+v, want the object pruned by the set that took it over", result)
	}
}

func TestAnObjectMovesWhenTheGiverFinishesFirst(t *testing.T) {
	h := newHandover(t)
	h.taker.engine.Propose(h.wanted)
	h.giver.apply(h.rest, Updating)
	result, err := h.giver.engine.Prune(t.Context(), keepOf(h.rest), generous)
	must(t, err)
	if len(result.Held) != 1 || result.Held[0] != (Held{h.id(), h.taker.owner}) || len(result.Deleted)+len(result.Orphaned) > 0 {
		t.Fatalf("%+v, want the object held for the other set", result)
	}
	h.taker.apply(h.wanted, Updating)
	h.wantTaken(t)
}

func TestAnObjectMovesWhenTheTakerComesFirst(t *testing.T) {
	h := newHandover(t)
	h.taker.engine.Propose(h.wanted)
	if owners := h.taker.engine.Others(h.wanted); owners[h.id()] != h.giver.owner {
		t.Fatalf("owners %v, want the giver while its payload contains the object", owners)
	}
	changed := h.giver.shared.Changed()
	must(t, h.giver.engine.Begin(t.Context(), h.rest, nil))
	select {
	case <-changed:
	default:
		t.Error("the taker isn't told that it may take the object")
	}
	if owners := h.taker.engine.Others(h.wanted); len(owners) > 0 {
		t.Errorf("owners %v, want none once the giver's payload lacks the object", owners)
	}
	if problems, err := h.taker.engine.DryRun(t.Context(), h.wanted); err != nil || len(problems) > 0 {
		t.Errorf("dry run: %v %v", problems, err)
	}
	h.taker.apply(h.wanted, Updating)
	result, err := h.giver.engine.Prune(t.Context(), keepOf(h.rest), generous)
	if err != nil || len(result.Deleted)+len(result.Orphaned)+len(result.Held) > 0 {
		t.Errorf("%+v, %v, want nothing left to prune", result, err)
	}
	// The giver can't take it back while the other set contains it.
	if owners := h.giver.engine.Others(h.all); owners[h.id()] != h.taker.owner {
		t.Errorf("owners %v, want the taker", owners)
	}
	h.wantTaken(t)
}

func TestAHandoverEndsAfterACrash(t *testing.T) {
	for name, giverFirst := range map[string]bool{"GiverLoadedFirst": true, "TakerLoadedFirst": false} {
		t.Run(name, func(t *testing.T) {
			h := newHandover(t)
			must(t, h.giver.engine.Begin(t.Context(), h.rest, nil))
			// The process ends after the taker's inventory was written.
			s := h.taker.engine.set
			s.mu.Lock()
			it := s.addLocked(&h.wanted[0], -1)
			it.entry.Taken = &inventory.Taken{From: h.giver.owner, UID: h.giver.get(h.id()).GetUID(), Created: true}
			s.mu.Unlock()
			must(t, s.flush(t.Context()))
			order := []*testEnv{h.taker, h.giver}
			if giverFirst {
				slices.Reverse(order)
			}
			restartAll(order...)
			// The giver's payload isn't known yet.
			h.taker.apply(h.wanted, Updating)
			must(t, h.giver.engine.Flush(t.Context()))
			h.wantTaken(t)
		})
	}
}

func TestAWithdrawnClaimReturnsTheObject(t *testing.T) {
	t.Run("BeforeItIsAccepted", func(t *testing.T) {
		h := newHandover(t)
		h.taker.engine.Propose(h.wanted)
		h.giver.apply(h.rest, Updating)
		if can, _ := h.giver.engine.Prunable(); slices.Contains(can, h.id()) {
			t.Error("the guard counts an object that another set claims")
		}
		h.taker.engine.Propose(nil)
		result, err := h.giver.engine.Prune(t.Context(), keepOf(h.rest), generous)
		must(t, err)
		if h.giver.exists(h.id()) || len(result.Deleted) != 1 {
			t.Errorf("%+v, want the object deleted", result)
		}
	})
	t.Run("WhenTheSetEnds", func(t *testing.T) {
		h := newHandover(t)
		other := h.giver.sibling("third")
		other.engine.Propose(h.wanted)
		h.giver.apply(h.rest, Updating)
		other.engine.Close()
		result, err := h.giver.engine.Prune(t.Context(), keepOf(h.rest), generous)
		must(t, err)
		if len(result.Deleted) != 1 {
			t.Errorf("%+v, want the object deleted", result)
		}
	})
	t.Run("AfterItWasTakenAndBeforeItWasApplied", func(t *testing.T) {
		h := newHandover(t)
		must(t, h.giver.engine.Begin(t.Context(), h.rest, nil))
		must(t, h.taker.engine.Begin(t.Context(), h.wanted, nil))
		h.taker.apply(nil, Updating) // The next payload lacks the object.
		result, err := h.taker.engine.Prune(t.Context(), nil, PruneOptions{All: true})
		must(t, err)
		if h.giver.exists(h.id()) || len(result.Deleted) != 1 {
			t.Errorf("%+v, want the object deleted: no set contains it any more", result)
		}
	})
}

func TestAnObjectMovesOnBeforeItsTakerAppliedIt(t *testing.T) {
	h := newHandover(t)
	between := h.giver.sibling("between")
	must(t, h.giver.engine.Begin(t.Context(), h.rest, nil))
	must(t, between.engine.Begin(t.Context(), h.all[:1], nil))
	must(t, between.engine.Begin(t.Context(), nil, nil))
	h.taker.apply(h.wanted, Updating)
	h.wantTaken(t)
}

func TestARenamedSetGivesAllItsObjects(t *testing.T) {
	refused := func(t *testing.T, h *handoverEnv, retriable bool, part string) {
		t.Helper()
		_, err := h.taker.engine.Apply(t.Context(), &h.wanted[0], Updating)
		var e *Error
		if !errors.As(err, &e) || e.Reason() != ReasonOwnedByOther || e.Retriable() != retriable || !strings.Contains(err.Error(), part) {
			t.Errorf("err = %v, want %s with %q, retriable %t", err, ReasonOwnedByOther, part, retriable)
		}
	}
	t.Run("OnlyOnceItLeftGit", func(t *testing.T) {
		h := newHandover(t)
		adopt := []string{h.giver.owner}
		must(t, h.giver.engine.Begin(t.Context(), h.all, nil))
		h.taker.engine.Adopt(adopt)
		refused(t, h, true, "remove it from")
		h.giver.engine.Retire(true)
		h.taker.engine.Adopt(nil)
		refused(t, h, true, "spec.adopt")
		must(t, h.taker.engine.Begin(t.Context(), h.wanted, adopt))
		if _, err := h.taker.engine.Apply(t.Context(), &h.wanted[0], Updating); err != nil {
			t.Fatal(err)
		}
		if made := h.giver.engine.Made(); !slices.Equal(made, []payload.ObjectID{h.rest[0].ID}) {
			t.Errorf("the renamed set has %v, want what its successor lacks", made)
		}
		h.wantTaken(t)
	})
	t.Run("OnceItIsDeleted", func(t *testing.T) {
		h := newHandover(t)
		must(t, h.giver.engine.Forget(t.Context()))
		h.giver.engine.Close()
		refused(t, h, false, `add "`+h.giver.owner+`" to spec.adopt`)
		h.taker.engine.Adopt([]string{h.giver.owner})
		h.giver.shared.SetKnown(func(string) bool { return true })
		refused(t, h, true, "spec.adopt")
		h.giver.shared.SetKnown(func(string) bool { return false })
		h.taker.applyAdopting(h.wanted, []string{h.giver.owner})
		h.wantTaken(t)
	})
}

// applyAdopting applies the manifests of a spec that adopts.
func (env *testEnv) applyAdopting(ms []payload.Manifest, adopt []string) {
	env.t.Helper()
	must(env.t, env.engine.Begin(env.t.Context(), ms, adopt))
	for i := range ms {
		_, err := env.engine.Apply(env.t.Context(), &ms[i], Updating)
		must(env.t, err)
	}
}

func TestARetiredSetKeepsTheObjectsThatNobodyNames(t *testing.T) {
	s := NewShared(1)
	id := payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: "a"}
	s.sets["clusterrelease/a"] = &claims{retired: true, accepted: map[payload.ObjectID]bool{}}
	s.sets["clusterrelease/b"] = &claims{accepted: map[payload.ObjectID]bool{id: false}}
	s.sets["clusterrelease/c"] = &claims{}
	s.known = func(owner string) bool { return owner == "clusterrelease/starting" }
	for _, tc := range []struct {
		giver       string
		named, want bool
	}{
		{"clusterrelease/a", false, false},
		{"clusterrelease/a", true, true},
		{"clusterrelease/b", true, false}, // It contains a delete manifest.
		{"clusterrelease/c", true, false}, // Its payload isn't known.
		{"clusterrelease/starting", true, false},
		{"clusterrelease/gone", true, true},
		{"clusterrelease/gone", false, false},
	} {
		if got := s.gives(tc.giver, id, tc.named); got != tc.want {
			t.Errorf("%s gives the object: %t, want %t (named %t)", tc.giver, got, tc.want, tc.named)
		}
	}
	if by := s.claimant(id, "clusterrelease/x"); by != "" {
		t.Errorf("%s claims an object that it deletes", by)
	}
}
