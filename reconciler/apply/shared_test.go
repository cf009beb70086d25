// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestSlowRequestsMoveToABoundedNumberOfPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(2)
		var places []*place
		began := time.Now()
		for range 2 + 2*slowPlaces { // All quick and slow places.
			p, err := b.acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			places = append(places, p)
		}
		if took := time.Since(began); took != slowPlaces*slowAfter {
			t.Errorf("%d hanging requests started within %s, want two per %s", len(places), took, slowAfter)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := b.acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one more: %v, want it to wait", err)
		}
		for _, p := range places {
			p.release()
			p.release() // Idempotent.
		}
		if len(b.quick)+len(b.slow) > 0 {
			t.Errorf("%d quick and %d slow places are taken after all were released", len(b.quick), len(b.slow))
		}
		p, err := b.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.release()
		elapse(t, 2*slowAfter)
		if len(b.quick)+len(b.slow) > 0 {
			t.Error("an ended request moved to a slow place")
		}
	})
}

// hanging serves a webhook that doesn't respond until released.
func hanging(t *testing.T) (url, ca string, release func()) {
	t.Helper()
	free := make(chan struct{})
	release = sync.OnceFunc(func() { close(free) })
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-free:
		case <-req.Context().Done():
		}
	}))
	t.Cleanup(func() { release(); server.Close() })
	raw := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return server.URL, base64.StdEncoding.EncodeToString(raw), release
}

func seconds(n int64) func(map[string]any) {
	return func(hook map[string]any) { hook["timeoutSeconds"] = n }
}

func TestHangingWebhookDoesNotBlockOtherObjects(t *testing.T) {
	env := newEnv(t)
	stuck := env.manifests(strings.Join(mapTexts(2*DefaultConcurrency), "---"))
	env.apply(stuck, Updating)
	env.awaitEvents(stuck)
	url, ca, _ := hanging(t)
	remove := env.webhook("ValidatingWebhookConfiguration", url, ca, seconds(15))
	env.await("the webhook to hang", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := env.resource(stuck[0].ID).Patch(ctx, stuck[0].ID.Name, types.MergePatchType, []byte(`{"data":{"k":"x"}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil
	})
	next := env.manifests(strings.ReplaceAll(strings.Join(mapTexts(2*DefaultConcurrency), "---"), "k: v", "k: w"))
	var group sync.WaitGroup
	failures := make([]error, len(next))
	for i := range next {
		group.Go(func() { _, failures[i] = env.engine.Apply(t.Context(), &next[i], Updating) })
	}
	env.await("all places to be taken", func() bool { return len(env.shared.budget.quick) == DefaultConcurrency })
	others := env.manifests(webSet)[1:4]
	began := time.Now()
	must(t, env.engine.Begin(t.Context(), others, nil))
	if _, err := env.engine.Apply(t.Context(), &others[0], Updating); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 2*slowAfter+time.Second {
		t.Errorf("another object took %s", took)
	}
	env.apply(others, Updating)
	group.Wait()
	for i, err := range failures {
		var refused *Error
		if !errors.As(err, &refused) || refused.Reason() != ReasonWebhookFailed || !refused.Retriable() {
			t.Fatalf("%s: %v, want a retriable %s", next[i].ID, err, ReasonWebhookFailed)
		}
	}
	if took := time.Since(began); took > 2*15*time.Second {
		t.Errorf("the objects behind the webhook failed after %s: a slow failure was retried", took)
	}
	remove()
	env.await("the objects behind the webhook", func() bool {
		for i := range next {
			if _, err := env.engine.Apply(t.Context(), &next[i], Updating); err != nil {
				return false
			}
		}
		return true
	})
	if got := env.get(next[0].ID).Object["data"].(map[string]any)["k"]; got != "w" {
		t.Errorf("data.k is %q after the webhook was removed", got)
	}
}

// mapTexts returns n ConfigMaps.
func mapTexts(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: stuck%d, namespace: NS}\ndata: {k: v}\n", i)
	}
	return out
}
