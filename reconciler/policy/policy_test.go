// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/test/controlenv"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

func TestAnUnpinnedFirstDocumentIsRejected(t *testing.T) {
	e := controlenv.New(t)
	obj := &v1alpha1.TrustPolicy{Spec: v1alpha1.TrustPolicySpec{Envelope: "{}"}}
	obj.Name = v1alpha1.TrustPolicyName
	e.Create(obj)
	r, err := New(Config{Base: e.Base})
	controlenv.Must(t, err)
	e.Writes()
	for range 2 {
		_, err = r.Reconcile(t.Context(), control.Request(obj.Name))
		controlenv.Must(t, err)
	}
	if n := e.Writes(); n != 1 {
		t.Errorf("%d writes, want one for an unchanged status", n)
	}
	controlenv.Must(t, e.Client.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
	c := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Status != "False" || c.Reason != "PolicyMissing" || !strings.Contains(c.Message, "--trust-root-digest") {
		t.Errorf("Ready = %+v", c)
	}
	if _, ok := e.Store.Trust(e.Now()); ok {
		t.Error("the document was accepted")
	}
}

// untouched is a client that must not be used.
type untouched struct {
	client.Client
	t *testing.T
}

func (u untouched) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	u.t.Error("the object was read")
	return nil
}

// Before the store is loaded it seems to have no accepted document.
func TestNothingIsReconciledBeforeTheStoreIsLoaded(t *testing.T) {
	e := controlenv.New(t)
	base := e.Base
	base.Ready, base.Client = make(chan struct{}), untouched{e.Client, t}
	r, err := New(Config{Base: base})
	controlenv.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Reconcile(ctx, control.Request(v1alpha1.TrustPolicyName)); !errors.Is(err, context.Canceled) {
		t.Errorf("Reconcile = %v, want it to wait", err)
	}
}
