// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/controlplane"
	"github.com/lockstep-dev/lockstep/test/env"
)

// whole is the whole reconciler as a process with its real role, with a Git
// server, a registry and a control plane that logs all requests.
type whole struct {
	*env.Env
	watch client.WithWatch
}

// declared is the path that the environment's source reads, product the
// release's name.
const (
	declared = "clusters/" + env.Cluster + "/"
	product  = "platform"
)

// inEnv starts an environment and runs work with it. The reconciler has its
// defaults.
func (b *bench) inEnv(ctx context.Context, o env.Options, work func(*whole) error) (err error) {
	log.SetOutput(io.Discard) // the Git server logs each request there
	if b.bin == "" {
		if err := b.build(ctx); err != nil {
			return err
		}
	}
	if o.Dir, err = os.MkdirTemp(b.dir, "world-"); err != nil {
		return fmt.Errorf("directory of the world: %w", err)
	}
	o.Bin, o.Audit = b.bin, true
	w, err := env.New(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && w.Reconciler != nil {
			err = fmt.Errorf("%w; the reconciler's log ends with:\n%s", err, w.Reconciler.Tail(10))
		}
		err = errors.Join(err, w.Close(), os.RemoveAll(o.Dir))
	}()
	watch, err := client.NewWithWatch(w.Control.Config, client.Options{Scheme: w.Client.Scheme()})
	if err != nil {
		return fmt.Errorf("client that watches: %w", err)
	}
	return work(&whole{w, watch})
}

// build builds the programs as they are shipped.
func (b *bench) build(ctx context.Context) error {
	b.log("building the programs")
	dir := filepath.Join(b.dir, "bin")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/...")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	b.bin = dir
	return nil
}

// start creates a source and starts a reconciler with a release of one object.
func (w *whole) start(ctx context.Context, source *v1alpha1.GitSource) error {
	const small = "site"
	ref, err := w.release(ctx, env.Release{Product: small, Version: "1.0.0", Components: []env.Component{{
		Name: "base", RunLevel: 10, Files: map[string]string{"namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: site}\n"},
	}}})
	if err != nil {
		return err
	}
	if _, err := w.commit(ctx, map[string]string{declared + small + ".yaml": declare(small, "1.0.0", ref)}); err != nil {
		return err
	}
	if err := w.Client.Create(ctx, source); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if err := w.StartReconciler("--lease-duration", "30s", "--log-level", "info"); err != nil {
		return err
	}
	return w.applied(ctx, small, "1.0.0")
}

// release builds and signs a release and returns its reference.
func (w *whole) release(ctx context.Context, r env.Release) (string, error) {
	ref, err := w.BuildRelease(ctx, r)
	if err != nil {
		return "", err
	}
	return ref, w.Sign(ctx, "release", ref)
}

// declare is a ClusterRelease manifest.
func declare(name, version, image string) string {
	return fmt.Sprintf("apiVersion: lockstep.dev/v1alpha1\nkind: ClusterRelease\nmetadata: {name: %s}\nspec:\n  desired:\n    version: %s\n    image: %s\n", name, version, image)
}

// commit signs, commits and pushes files and returns the commit.
func (w *whole) commit(ctx context.Context, files map[string]string) (string, error) {
	hash, err := w.Git.Commit(ctx, w.Key("admin"), "change", files)
	if err != nil {
		return "", err
	}
	return hash, w.Git.Push(ctx, "main")
}

// fetch requests a fetch of the repository, as a webhook does.
func (w *whole) fetch(ctx context.Context) error {
	source := &v1alpha1.GitSource{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "fleet"}}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationRequestedAt, time.Now().UTC().Format(time.RFC3339Nano))
	if err := w.Client.Patch(ctx, source, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("ask for a look: %w", err)
	}
	return nil
}

// mostWait bounds every wait for the reconciler.
const mostWait = 3 * time.Minute

// applied waits until a release is complete at a version, by a watch.
func (w *whole) applied(ctx context.Context, name, version string) error {
	return w.until(ctx, &v1alpha1.ClusterReleaseList{}, fmt.Sprintf("%s %s is complete", name, version), func(o client.Object) bool {
		r, ok := o.(*v1alpha1.ClusterRelease)
		return ok && r.Name == name && r.Status.Applied != nil && r.Status.Applied.Version == version &&
			meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionReady)
	})
}

// until waits until an object of a kind is as wanted.
func (w *whole) until(ctx context.Context, list client.ObjectList, what string, is func(client.Object) bool) error {
	ctx, cancel := context.WithTimeout(ctx, mostWait)
	defer cancel()
	watcher, err := w.watch.Watch(ctx, list, client.InNamespace(v1alpha1.Namespace))
	if err != nil {
		return fmt.Errorf("wait until %s: %w", what, err)
	}
	defer watcher.Stop()
	for {
		select {
		case e, ok := <-watcher.ResultChan():
			if !ok {
				return fmt.Errorf("wait until %s: the watch ended", what)
			}
			if o, ok := e.Object.(client.Object); ok && is(o) {
				return nil
			}
		case <-w.Reconciler.Done():
			return fmt.Errorf("wait until %s: the reconciler ended", what)
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		}
	}
}

// asked is what the reconciler asked the API server.
type asked struct {
	all []controlplane.Audited
}

func askedSince(mark controlplane.AuditMark) (asked, error) {
	requests, err := mark.Since()
	var out asked
	for _, a := range requests {
		if env.IsReconciler(a) {
			out.all = append(out.all, a)
		}
	}
	return out, err
}

// count counts the requests that match.
func (a asked) count(match func(controlplane.Audited) bool) float64 {
	n := 0
	for _, one := range a.all {
		if match(one) {
			n++
		}
	}
	return float64(n)
}

func isLease(a controlplane.Audited) bool { return a.Resource == "leases" }
func noLease(a controlplane.Audited) bool { return a.Resource != "leases" }

// otherWrites may have changed something beside the lease.
func otherWrites(a controlplane.Audited) bool { return noLease(a) && a.Writes() }

// table counts by what was done to what, for the progress.
func (a asked) table() map[string]int {
	out := map[string]int{}
	for _, one := range a.all {
		what := one.Verb + " " + one.Resource
		if one.Subresource != "" {
			what += "/" + one.Subresource
		}
		if one.Namespace == v1alpha1.Namespace && one.Resource == "configmaps" && one.Verb != "watch" {
			what += " " + one.Name
		}
		out[what]++
	}
	return out
}
