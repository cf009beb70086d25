// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/config"
	"github.com/lockstep-dev/lockstep/nodeos/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func key(name string) nodeos.ResourceKey {
	return nodeos.ResourceKey{Namespace: "ns", Type: "T", Name: name}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPutRequiresTheStoredVersionAndTheOwner(t *testing.T) {
	s := NewStore()
	first, err := s.Put(t.Context(), nodeos.Resource{ResourceKey: key("a"), Owner: "me", Spec: 1})
	must(t, err)
	if first.Version != 1 {
		t.Errorf("the first version is %d", first.Version)
	}
	var conflict *ConflictError
	for name, r := range map[string]nodeos.Resource{
		"created twice":      {ResourceKey: key("a"), Owner: "me"},
		"an older version":   {ResourceKey: key("a"), Owner: "me", Version: 7},
		"another owner":      {ResourceKey: key("a"), Owner: "you", Version: 1},
		"a missing resource": {ResourceKey: key("b"), Owner: "me", Version: 1},
		"without any owner":  {ResourceKey: key("a"), Version: 1},
	} {
		if _, err := s.Put(t.Context(), r); !errors.As(err, &conflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	first.Spec = 2
	second, err := s.Put(t.Context(), first)
	must(t, err)
	if second.Version != 2 {
		t.Errorf("the second version is %d", second.Version)
	}
	if err := s.Delete(t.Context(), key("a"), "you"); !errors.As(err, &conflict) {
		t.Errorf("deleted by another owner: %v", err)
	}
	must(t, s.Delete(t.Context(), key("a"), "me"))
	must(t, s.Delete(t.Context(), key("a"), "me"))
	if _, err := s.Get(t.Context(), key("a")); !errors.Is(err, nodeos.ErrNoResource) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Put(t.Context(), nodeos.Resource{}); err == nil {
		t.Error("a resource without a name was accepted")
	}
}

func TestConcurrentUpdatesAreNotLost(t *testing.T) {
	s := NewStore()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				for {
					err := Update(t.Context(), s, key("n"), "", func(spec any) (any, bool) {
						n, _ := spec.(int)
						return n + 1, true
					})
					if err == nil {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	if r, err := s.Get(t.Context(), key("n")); err != nil || r.Spec != 160 || r.Version != 160 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestWatchStartsWithExistingResourcesAndEndsAtTheLastVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		put := func(name string, v uint64, spec any) {
			t.Helper()
			_, err := s.Put(t.Context(), nodeos.Resource{ResourceKey: key(name), Version: v, Spec: spec})
			must(t, err)
		}
		put("b", 0, "b")
		put("a", 0, "a")
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			err := s.Watch(ctx, "ns", "T", func(e nodeos.ResourceEvent) error {
				got = append(got, fmt.Sprint(e.Resource.Name, e.Resource.Spec, e.Deleted, e.Synced))
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		put("a", 1, "A")
		put("a", 2, "AA")
		must(t, s.Delete(t.Context(), key("b"), ""))
		synctest.Wait()
		cancel()
		wg.Wait()
		want := []string{"aa false false", "bb false false", "<nil> false true", "aAA false false", "bb true false"}
		if diff := cmp.Diff(normal(want), normal(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// normal removes the blanks of fmt.Sprint.
func normal(in []string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		for _, r := range s {
			if r != ' ' {
				out[i] += string(r)
			}
		}
	}
	return out
}

func TestRecreatedResourceIsReportedAsAChange(t *testing.T) {
	s := NewStore()
	seen := map[nodeos.ResourceKey]entry{}
	for i := range 3 {
		_, err := s.Put(t.Context(), nodeos.Resource{ResourceKey: key("a"), Spec: i})
		must(t, err)
		now, _ := s.snapshot("ns", "T")
		if got := difference(seen, now); len(got) != 1 || got[0].Resource.Spec != i || got[0].Deleted {
			t.Errorf("creation %d: %+v", i+1, got)
		}
		must(t, s.Delete(t.Context(), key("a"), ""))
	}
}

func TestWatchReturnsTheErrorOfItsFunction(t *testing.T) {
	boom := errors.New("boom")
	if err := NewStore().Watch(t.Context(), "ns", "T", func(nodeos.ResourceEvent) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
}

// doubler doubles its input.
type doubler struct {
	name    string
	outputs []Kind
	crash   *int
}

func (d doubler) Name() string    { return d.name }
func (d doubler) Inputs() []Kind  { return []Kind{{"ns", "In"}} }
func (d doubler) Outputs() []Kind { return d.outputs }
func (d doubler) Run(ctx context.Context, a *Access) error {
	if *d.crash > 0 {
		*d.crash--
		panic("a bug")
	}
	return a.Watch(ctx, Kind{"ns", "In"}, func(e nodeos.ResourceEvent) error {
		if e.Synced {
			return nil
		}
		n, _ := e.Resource.Spec.(int)
		return a.Update(ctx, Kind{"ns", "Out"}, e.Resource.Name, func(spec any) (any, bool) { return 2 * n, spec != any(2*n) })
	})
}

func TestControllersRestartAfterAPanicAndEndWithTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore()
		r := NewRuntime(s, zap.NewNop())
		crash := 2
		must(t, r.Register(doubler{"doubler", []Kind{{"ns", "Out"}}, &crash}))
		drainer := nodeos.NewDrainer()
		var wg sync.WaitGroup
		wg.Go(func() { must(t, r.Run(t.Context(), drainer)) })
		_, err := s.Put(t.Context(), nodeos.Resource{ResourceKey: nodeos.ResourceKey{Namespace: "ns", Type: "In", Name: "x"}, Spec: 21})
		must(t, err)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		out, err := s.Get(t.Context(), nodeos.ResourceKey{Namespace: "ns", Type: "Out", Name: "x"})
		if err != nil || out.Spec != 42 || out.Owner != "doubler" {
			t.Errorf("got %+v, %v", out, err)
		}
		must(t, drainer.Drain(t.Context()))
		wg.Wait()
	})
}

func TestControllersAccessOnlyDeclaredTypes(t *testing.T) {
	none := 0
	a := &Access{store: NewStore(), controller: doubler{"d", []Kind{{"ns", "Out"}}, &none}}
	if err := a.Watch(t.Context(), Kind{"ns", "Out"}, nil); !errors.Is(err, errUndeclared) {
		t.Errorf("read: %v", err)
	}
	if err := a.Update(t.Context(), Kind{"ns", "In"}, "x", nil); !errors.Is(err, errUndeclared) {
		t.Errorf("write: %v", err)
	}
}

func TestTwoControllersCannotHaveTheSameOutput(t *testing.T) {
	r := NewRuntime(NewStore(), zap.NewNop())
	none := 0
	must(t, r.Register(doubler{"one", []Kind{{"ns", "Out"}}, &none}))
	if err := r.Register(doubler{"two", []Kind{{"ns", "Out"}}, &none}); err == nil {
		t.Error("two controllers with output ns/Out were accepted")
	}
	if err := r.Register(doubler{"one", nil, &none}); err == nil {
		t.Error("two controllers with the same name were accepted")
	}
	g, err := r.DependencyGraph()
	must(t, err)
	want := nodeos.DependencyGraph{Edges: []nodeos.DependencyEdge{
		{Controller: "one", Namespace: "ns", Type: "In"},
		{Controller: "one", Output: true, Namespace: "ns", Type: "Out"},
	}}
	if diff := cmp.Diff(want, g); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"In", "MachineConfig", "Out"}, r.Types()); diff != "" {
		t.Errorf("types (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"config", "ns"}, r.Namespaces()); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
}

func TestSetConfigPublishesAChangeOnce(t *testing.T) {
	r := NewRuntime(NewStore(), zap.NewNop())
	for _, name := range []string{"a", "a", "b"} {
		c, err := config.Parse([]byte("apiVersion: lockstep.dev/v1alpha1\nkind: MachineConfig\nhostname: " + name))
		must(t, err)
		must(t, r.SetConfig(c))
	}
	got, err := r.Resources().Get(t.Context(), nodeos.ResourceKey{Namespace: ConfigNamespace, Type: MachineConfigType, Name: SingletonName})
	must(t, err)
	if p, ok := got.Spec.(nodeos.Provider); !ok || p.Hostname() != "b" || got.Version != 2 {
		t.Errorf("got %+v", got)
	}
}

func TestStatusIsDerivedFromEvents(t *testing.T) {
	event := func(id string, p nodeos.Payload) nodeos.Event { return nodeos.Event{OperationID: id, Payload: p} }
	s := MachineStatus{Stage: StageBooting}
	for i, tc := range []struct {
		event nodeos.Event
		want  MachineStatus
	}{
		{event("b", nodeos.EventSequenceStart{Sequence: nodeos.SequenceBoot}), MachineStatus{StageBooting, "b", ""}},
		{event("b", nodeos.EventSequenceStop{Sequence: nodeos.SequenceBoot, State: nodeos.OperationSucceeded}), MachineStatus{StageRunning, "", ""}},
		{event("n", nodeos.EventSequenceStart{Sequence: nodeos.SequenceNoop}), MachineStatus{StageRunning, "n", ""}},
		{event("u", nodeos.EventSequenceStart{Sequence: nodeos.SequenceUpgrade}), MachineStatus{StageUpgrading, "u", ""}},
		{event("n", nodeos.EventSequenceStop{Sequence: nodeos.SequenceNoop, State: nodeos.OperationCanceled}), MachineStatus{StageUpgrading, "u", ""}},
		{event("u", nodeos.EventTrial{What: "armed"}), MachineStatus{StageOnTrial, "u", ""}},
		{event("u", nodeos.EventRestart{}), MachineStatus{StageRestarting, "u", ""}},
		{event("u", nodeos.EventSequenceStart{Sequence: nodeos.SequenceUpgrade, Resumed: true}), MachineStatus{StageUpgrading, "u", ""}},
		{event("u", nodeos.EventTrial{What: "committed"}), MachineStatus{StageUpgrading, "u", ""}},
		{event("u", nodeos.EventSequenceStop{Sequence: nodeos.SequenceUpgrade, State: nodeos.OperationSucceeded}), MachineStatus{StageRunning, "", ""}},
		{event("r", nodeos.EventSequenceStart{Sequence: nodeos.SequenceReset}), MachineStatus{StageResetting, "r", ""}},
		{event("r", nodeos.EventSequenceStop{Sequence: nodeos.SequenceReset, State: nodeos.OperationFailed, Error: "bad disk"}), MachineStatus{StageFailed, "", "bad disk"}},
	} {
		s = Fold(s, tc.event)
		if s != tc.want {
			t.Fatalf("event %d: %+v, want %+v", i, s, tc.want)
		}
	}
}

func TestStatusControllerFollowsTheEventStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ring, err := events.New(events.Config{BootID: "b", Now: time.Now})
		must(t, err)
		ring.Publish("boot", nodeos.EventSequenceStart{Sequence: nodeos.SequenceBoot})
		s := NewStore()
		r := NewRuntime(s, zap.NewNop())
		must(t, r.Register(NewStatusController(ring)))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { must(t, r.Run(ctx, nodeos.NewDrainer())) })
		ring.Publish("boot", nodeos.EventSequenceStop{Sequence: nodeos.SequenceBoot, State: nodeos.OperationSucceeded})
		synctest.Wait()
		got, err := s.Get(t.Context(), nodeos.ResourceKey{Namespace: RuntimeNamespace, Type: MachineStatusType, Name: SingletonName})
		must(t, err)
		if got.Spec != any(MachineStatus{Stage: StageRunning}) {
			t.Errorf("got %+v", got.Spec)
		}
		cancel()
		wg.Wait()
	})
}
