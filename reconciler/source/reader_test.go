// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/test/controlenv"
)

// runGroup runs the group of the runtimes until the test ends.
func runGroup(t *testing.T, s *runtimes) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Start(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	deadline := time.Now().Add(10 * time.Second)
	for {
		if stop, ok := s.Go(func(context.Context) {}); ok {
			stop()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the group didn't start")
		}
	}
}

func TestAnEditOfADirectoryTriggersItsSource(t *testing.T) {
	s := &env{Env: controlenv.New(t), t: t, name: "directory"}
	s.r = newController(t, s.Env, t.TempDir())
	runGroup(t, s.r.runtimes)
	dir := t.TempDir()
	write := func(version string) {
		t.Helper()
		// Editors replace a file by a new one.
		next := filepath.Join(t.TempDir(), "all.yaml")
		must(t, os.WriteFile(next, []byte(releaseDoc("from-directory", version)), 0o600))
		must(t, os.Rename(next, filepath.Join(dir, "all.yaml")))
	}
	write("1.0.0")
	s.deleteAtEnd("from-directory")
	s.Create(&v1alpha1.GitSource{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: v1alpha1.GitSourceSpec{
			Cluster: "prod", URL: "file://" + dir, Ref: v1alpha1.GitRef{Branch: "main"},
			Interval: metav1.Duration{Duration: time.Hour}, Timeout: metav1.Duration{Duration: time.Minute},
		},
	})
	if obj := s.reconcile(s.name); obj.Status.AcceptedRevision == nil {
		t.Fatalf("the directory isn't accepted: %+v", obj.Status.Conditions)
	}
	if got := s.release("from-directory").Spec.Desired.Version; got != "1.0.0" {
		t.Fatalf("the directory declares 1.0.0, the cluster has %s", got)
	}
	for range len(s.r.runtimes.edits) {
		<-s.r.runtimes.edits
	}
	write("1.1.0")
	select {
	case e := <-s.r.runtimes.edits:
		if e.Object != s.name {
			t.Errorf("source %q is triggered, want %q", e.Object, s.name)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the edit triggered nothing")
	}
	obj := s.reconcile(s.name)
	if got := s.release("from-directory").Spec.Desired.Version; got != "1.1.0" {
		t.Errorf("after the edit the cluster has %s: %+v", got, obj.Status.Conditions)
	}
	if !meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionInsecure) {
		t.Error("a directory as a source is an insecure option, but the condition Insecure isn't True")
	}
	must(t, s.r.runtimes.drop(s.name))
}

func TestADirectoryCannotBeVerified(t *testing.T) {
	s := &runtimes{allowInsecure: true}
	_, err := s.open(&v1alpha1.GitSource{Spec: v1alpha1.GitSourceSpec{URL: "file://" + t.TempDir(), Verify: &v1alpha1.GitVerify{Mode: "head"}}})
	if control.ReasonOf(err, "") != "InvalidSpec" {
		t.Errorf("open = %v, want reason InvalidSpec", err)
	}
}
