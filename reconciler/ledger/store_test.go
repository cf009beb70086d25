// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/test/controlplane"
)

// realStore returns a Store on the real API server, in a new namespace.
func realStore(t *testing.T) (*Store, typedcorev1.ConfigMapInterface) {
	t.Helper()
	client, err := kubernetes.NewForConfig(controlplane.Shared(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ledger-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps(ns.Name)
	return NewStore(inNamespace{maps, ns.Name}), maps
}

// inNamespace writes the ledger of a test to the test's namespace.
type inNamespace struct {
	typedcorev1.ConfigMapInterface
	namespace string
}

func (n inNamespace) Create(ctx context.Context, cm *corev1.ConfigMap, o metav1.CreateOptions) (*corev1.ConfigMap, error) {
	cm.Namespace = n.namespace
	return n.ConfigMapInterface.Create(ctx, cm, o)
}

func (n inNamespace) Update(ctx context.Context, cm *corev1.ConfigMap, o metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	cm.Namespace = n.namespace
	return n.ConfigMapInterface.Update(ctx, cm, o)
}

func TestOnlyOneOfConcurrentClaimsSucceeds(t *testing.T) {
	t.Parallel()
	s, _ := realStore(t)
	ctx := t.Context()
	if _, err := s.Acquire(ctx, "c", "h", nil); err != nil {
		t.Fatal(err)
	}
	snap, err := s.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const leaders = 8
	results := make([]error, leaders)
	var wg sync.WaitGroup
	for i := range leaders {
		wg.Go(func() {
			d := snap.Document.Clone()
			d.SetSlot(fmt.Sprintf("uid-%d", i), Slot{Node: "n", Attempt: "a", State: Claimed, ClaimedAt: noon()})
			_, results[i] = s.Swap(ctx, snap, d)
		})
	}
	wg.Wait()
	succeeded := 0
	for _, err := range results {
		switch {
		case err == nil:
			succeeded++
		case !errors.Is(err, ErrConflict):
			t.Errorf("a failed claim returned %v, want ErrConflict", err)
		}
	}
	after, err := s.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if succeeded != 1 || len(after.Document.Slots) != 1 {
		t.Errorf("%d claims succeeded, %d slots stored; want 1 and 1", succeeded, len(after.Document.Slots))
	}
}

func TestFirstWriteIsACompareAndSwap(t *testing.T) {
	t.Parallel()
	s, _ := realStore(t)
	ctx := t.Context()
	snap, err := s.Load(ctx)
	if err != nil || !snap.Missing {
		t.Fatalf("missing=%v, error %v; want a missing ledger", snap.Missing, err)
	}
	if _, err := s.Swap(ctx, snap, fullDocument()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(ctx, snap, Document{}); !errors.Is(err, ErrConflict) {
		t.Errorf("the second creation returned %v, want ErrConflict", err)
	}
	got, err := s.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullDocument(), got.Document, ignoreExtra()); diff != "" {
		t.Errorf("stored document (-want +got):\n%s", diff)
	}
}

func TestADeletedLedgerIsNotRecreatedBySwap(t *testing.T) {
	t.Parallel()
	s, maps := realStore(t)
	ctx := t.Context()
	if _, err := s.Acquire(ctx, "c", "h", nil); err != nil {
		t.Fatal(err)
	}
	snap, err := s.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Swap(ctx, snap, snap.Document); !errors.Is(err, ErrConflict) {
		t.Errorf("error %v, want ErrConflict", err)
	}
	if _, err := maps.Get(ctx, Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the ledger was recreated: %v", err)
	}
}

func TestEachAcquisitionRaisesTheFence(t *testing.T) {
	t.Parallel()
	s, _ := realStore(t)
	ctx := t.Context()
	const leaders = 6
	fences := make([]Fence, leaders)
	var wg sync.WaitGroup
	for i := range leaders {
		wg.Go(func() {
			f, err := s.Acquire(ctx, "c", fmt.Sprintf("h%d", i), []uint64{3})
			if err != nil {
				t.Error(err)
			}
			fences[i] = f
		})
	}
	wg.Wait()
	seen := map[uint64]bool{}
	for _, f := range fences {
		if f.Epoch <= 3 || seen[f.Epoch] {
			t.Errorf("epoch %d was acquired twice or isn't above the reported one", f.Epoch)
		}
		seen[f.Epoch] = true
	}
	if _, err := s.Acquire(ctx, "another cluster", "h", nil); err == nil {
		t.Error("the fence of another cluster's ledger was acquired")
	}
	if f, err := s.Reset(ctx, "another cluster", 1); err != nil || f.Epoch != 1 {
		t.Errorf("reset returned %+v, %v", f, err)
	}
	if f, err := s.Acquire(ctx, "another cluster", "h", nil); err != nil || f.Epoch != 2 {
		t.Errorf("after a reset Acquire returned %+v, %v", f, err)
	}
}

func TestAnOlderFenceCannotWrite(t *testing.T) {
	t.Parallel()
	s, _ := realStore(t)
	ctx := t.Context()
	old, err := s.Acquire(ctx, "c", "old", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(ctx, "c", "new", nil); err != nil {
		t.Fatal(err)
	}
	snap, err := s.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	d := snap.Document.Clone()
	d.Fence = old
	if _, err := s.Swap(ctx, snap, d); !errors.Is(err, ErrSuperseded) {
		t.Errorf("error %v, want ErrSuperseded", err)
	}
}

func TestMarksOnlyRise(t *testing.T) {
	t.Parallel()
	s, _ := realStore(t)
	ctx := t.Context()
	mark := func() string {
		snap, err := s.Load(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return snap.Document.Marks["os"].Version
	}
	for _, step := range []struct{ raise, want string }{{"1.2.0", "1.2.0"}, {"1.10.0", "1.10.0"}, {"1.9.9", "1.10.0"}} {
		if err := s.RaiseMark(ctx, "os", Image{Version: step.raise}, noon()); err != nil {
			t.Fatal(err)
		}
		if got := mark(); got != step.want {
			t.Errorf("after %s the mark is %s, want %s", step.raise, got, step.want)
		}
	}
	if err := s.RaiseMark(ctx, "os", Image{Version: "latest"}, noon()); err == nil {
		t.Error("an invalid version was accepted")
	}
}
