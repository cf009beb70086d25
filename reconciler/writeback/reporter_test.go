// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/sources"
)

// fakeCluster has one GitSource and implements the interfaces of Config.
type fakeCluster struct {
	cache.Informer
	branch *fakeBranch
	notify []toolscache.ResourceEventHandler

	mu        sync.Mutex
	source    v1alpha1.GitSource
	published Published
	opened    []string
}

func (c *fakeCluster) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return c, nil
}

func (c *fakeCluster) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	c.notify = append(c.notify, h)
	return nil, nil
}

func (c *fakeCluster) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	source, ok := obj.(*v1alpha1.GitSource)
	if !ok {
		return errors.New("not a GitSource")
	}
	c.source.DeepCopyInto(source)
	return nil
}

func (c *fakeCluster) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l, ok := list.(*v1alpha1.GitSourceList); ok {
		l.Items = []v1alpha1.GitSource{*c.source.DeepCopy()}
	}
	return nil
}

func (c *fakeCluster) Source(string) (Accepted, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Accepted{Revision: sources.Revision{Ref: "main", Hash: "9f2c1ab000000000000000000000000000000000"}, Time: now, Published: c.published}, true
}

func (c *fakeCluster) SetPublished(_ context.Context, _ string, p Published) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.published = p
	return nil
}

func (c *fakeCluster) Open(_ *v1alpha1.GitSource, url, _ string) (Publisher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened = append(c.opened, url)
	if url == "invalid" {
		return nil, errors.New("open status branch: invalid URL")
	}
	return c.branch, nil
}

func (c *fakeCluster) patchStatus(_ context.Context, _ *v1alpha1.GitSource, change func(*v1alpha1.GitSource) bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.source)
	return nil
}

// edit changes the source and notifies the reporter.
func (c *fakeCluster) edit(change func(*v1alpha1.GitSource)) {
	c.mu.Lock()
	change(&c.source)
	c.mu.Unlock()
	c.notify[0].OnUpdate(nil, nil)
	time.Sleep(time.Minute)
	synctest.Wait()
}

func (c *fakeCluster) ready() (status, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ready := meta.FindStatusCondition(c.source.Status.Conditions, v1alpha1.ConditionWriteBackReady); ready != nil {
		return string(ready.Status), ready.Reason
	}
	return "", ""
}

func TestTheReporterRunsOneWriterPerDeclaredStatusBranch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCluster{branch: &fakeBranch{}}
		c.source.Name, c.source.Spec.URL, c.source.Spec.Cluster = "fleet", "https://git.example.com/fleet", "prod"
		r, err := New(Config{
			Client: c, Informers: c, Store: c, Branches: c, PatchStatus: c.patchStatus, Now: time.Now, Log: logr.Discard(),
			Ready: func(context.Context) error { return nil }, Edited: func(*v1alpha1.GitSource) bool { return false },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if err := r.Start(ctx); err != nil {
				t.Errorf("Start: %v", err)
			}
		})
		defer group.Wait()
		defer cancel()
		synctest.Wait()
		c.edit(func(*v1alpha1.GitSource) {})
		if c.branch.commits() != 0 || len(c.opened) != 0 {
			t.Errorf("%d commits to %q without spec.writeBack", c.branch.commits(), c.opened)
		}
		c.edit(func(s *v1alpha1.GitSource) { s.Spec.WriteBack = &v1alpha1.WriteBack{} })
		if status, reason := c.ready(); c.branch.commits() != 1 || status != "True" || reason != "Pushed" || c.published.Key == "" || c.source.Status.StatusCommit == nil {
			t.Errorf("%d commits, WriteBackReady=%s %s, published %+v", c.branch.commits(), status, reason, c.published)
		}
		c.edit(func(s *v1alpha1.GitSource) { s.Spec.WriteBack.URL = "invalid" })
		if status, reason := c.ready(); status != "False" || reason != "StatusPushFailed" {
			t.Errorf("WriteBackReady=%s %s with an invalid URL", status, reason)
		}
		c.edit(func(s *v1alpha1.GitSource) { s.Spec.WriteBack = nil })
		if len(r.writers) != 0 {
			t.Errorf("%d writers without spec.writeBack", len(r.writers))
		}
	})
}
