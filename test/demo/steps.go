// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

// demo is the state of the demo.
type demo struct {
	w *env.Env
	s *screen
	// first and second are the releases 1.0.0 and 1.1.0.
	first, second string
	// merge is the commit that declared 1.1.0; since are those after it.
	merge string
	since []string
}

// step is one step of the demo.
type step struct {
	title string
	play  func(ctx context.Context) error
}

func (d *demo) steps() []step {
	return []step{
		{"trust is initialized; release 1.0.0 is built, signed, committed and applied", d.firstRelease},
		{"1.1.0 with a new node OS is merged and rolled out to one host at a time, while a workload stays available", d.upgrade},
		{"an unsigned 1.2.0 is committed and rejected; 1.1.0 keeps running, and the status branch has the reason", d.unsigned},
		{"a manual edit of a managed object is reverted", d.drift},
		{"an OS that fails its health check is rolled back automatically; the host denies it and the pool halts", d.badOS},
		{"git revert rolls back to 1.0.0", d.revert},
		{"the reconciler is killed during an upgrade, and the upgrade completes", d.kill},
		{"a payload with a TrustPolicy, and a commit signed without the git role, are rejected", d.boundaries},
	}
}

// play runs all steps and returns how many passed.
func (d *demo) play(ctx context.Context) (int, error) {
	for i, st := range d.steps() {
		d.s.title(fmt.Sprintf("%d. %s", i+1, st.title))
		if err := st.play(ctx); err != nil {
			if d.w.Reconciler != nil {
				d.s.show("tail reconciler.log", d.w.Reconciler.Tail(15))
			}
			return i, fmt.Errorf("step %d (%s): %w", i+1, st.title, err)
		}
		d.s.note("passed")
	}
	return len(d.steps()), nil
}

// publish builds a release and signs it if signed is true.
func (d *demo) publish(ctx context.Context, r env.Release, signed bool) (string, error) {
	ref, err := d.w.BuildRelease(ctx, r)
	if err != nil || !signed {
		return ref, err
	}
	return ref, d.w.Sign(ctx, "release", ref)
}

// os builds and signs an operating system.
func (d *demo) os(ctx context.Context, version string, healthy bool) (string, error) {
	ref, err := d.w.BuildOS(ctx, system(version, healthy))
	if err != nil {
		return "", err
	}
	return ref, d.w.Sign(ctx, "os", ref)
}

// commit declares a release on main, signed by admin.
func (d *demo) commit(ctx context.Context, message, version, image string) error {
	hash, err := d.w.Git.Commit(ctx, d.w.Key("admin"), message, map[string]string{declared: release(version, image)})
	if err != nil {
		return err
	}
	d.since = append(d.since, hash)
	d.s.note("git commit -S -m %q && git push", message)
	return d.w.Git.Push(ctx, "main")
}

func (d *demo) firstRelease(ctx context.Context) error {
	var err error
	if d.first, err = d.publish(ctx, platform("1.0.0", "1.0.0", d.w.FirstOS(), nil), true); err != nil {
		return err
	}
	d.s.note("built and signed release 1.0.0: %s", d.first)
	if err := d.commit(ctx, "platform 1.0.0", "1.0.0", d.first); err != nil {
		return err
	}
	if err := d.w.Client.Create(ctx, d.w.GitSource()); err != nil {
		return fmt.Errorf("GitSource: %w", err)
	}
	if err := d.w.StartReconciler(); err != nil {
		return err
	}
	if err := d.applied(ctx, "1.0.0", 2*time.Minute); err != nil {
		return err
	}
	if err := d.settings(ctx, "1.0.0"); err != nil {
		return err
	}
	return d.status(ctx)
}

func (d *demo) upgrade(ctx context.Context) error {
	osRef, err := d.os(ctx, "1.1.0", true)
	if err != nil {
		return err
	}
	if d.second, err = d.publish(ctx, platform("1.1.0", "1.1.0", osRef, nil), true); err != nil {
		return err
	}
	git := d.w.Git
	if _, err := git.Run(ctx, "switch", "-q", "-c", "upgrade-1.1.0"); err != nil {
		return err
	}
	if _, err := git.Commit(ctx, d.w.Key("admin"), "platform 1.1.0, OS 1.1.0", map[string]string{declared: release("1.1.0", d.second)}); err != nil {
		return err
	}
	if err := git.Push(ctx, "upgrade-1.1.0"); err != nil {
		return err
	}
	d.s.note("pushed branch upgrade-1.1.0; nothing changes before it is merged")
	if _, err := git.Run(ctx, "switch", "-q", "main"); err != nil {
		return err
	}
	if _, err := git.Run(ctx, "-c", "user.signingkey="+d.w.Key("admin"), "merge", "-q", "-S", "--no-ff", "-m", "Merge platform 1.1.0", "upgrade-1.1.0"); err != nil {
		return err
	}
	if d.merge, err = git.Head(ctx); err != nil {
		return err
	}
	d.since = nil
	watch := d.watchWorkload(ctx)
	if err := git.Push(ctx, "main"); err != nil {
		return errors.Join(err, watch())
	}
	d.s.note("merged")
	err = d.applied(ctx, "1.1.0", 5*time.Minute)
	if err = errors.Join(err, watch()); err != nil {
		return err
	}
	if err := d.booted(ctx, "1.1.0", 10*time.Second); err != nil {
		return err
	}
	return d.status(ctx)
}

func (d *demo) unsigned(ctx context.Context) error {
	osRef, err := d.os(ctx, "1.2.0", true)
	if err != nil {
		return err
	}
	ref, err := d.publish(ctx, platform("1.2.0", "1.2.0", osRef, nil), false)
	if err != nil {
		return err
	}
	if err := d.commit(ctx, "platform 1.2.0, unsigned", "1.2.0", ref); err != nil {
		return err
	}
	message, err := d.condition(ctx, &v1alpha1.ClusterRelease{}, "platform", v1alpha1.ConditionReleaseVerified, metav1.ConditionFalse, "Unsigned")
	if err != nil {
		return err
	}
	d.s.show("kubectl get clusterrelease platform -o jsonpath=…ReleaseVerified", message)
	if err := d.settings(ctx, "1.1.0"); err != nil {
		return fmt.Errorf("1.1.0 should keep running: %w", err)
	}
	if err := d.booted(ctx, "1.1.0", 10*time.Second); err != nil {
		return err
	}
	return d.statusBranch(ctx, "Unsigned")
}

func (d *demo) drift(ctx context.Context) error {
	edit := `{"data":{"greeting":"changed by hand"}}`
	if path, err := exec.LookPath("kubectl"); err == nil {
		cmd := exec.CommandContext(ctx, path, "--kubeconfig", d.w.Control.Kubeconfig(), "-n", "web", "patch", "configmap", "settings", "--type", "merge", "-p", edit)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl patch: %w: %s", err, out)
		}
	} else {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "settings"}}
		if err := d.w.Client.Patch(ctx, cm, client.RawPatch(types.MergePatchType, []byte(edit))); err != nil {
			return fmt.Errorf("patch: %w", err)
		}
	}
	edited := time.Now()
	d.s.note("kubectl -n web patch configmap settings -p %s", edit)
	err := env.Wait(ctx, 15*time.Second, func(ctx context.Context) error {
		var cm corev1.ConfigMap
		if err := d.w.Client.Get(ctx, client.ObjectKey{Namespace: "web", Name: "settings"}, &cm); err != nil {
			return err
		}
		if cm.Data["greeting"] != "hello" {
			return fmt.Errorf("greeting is %q, want hello", cm.Data["greeting"])
		}
		return nil
	})
	if err == nil {
		d.s.note("reverted within %d ms", time.Since(edited).Milliseconds())
	}
	return err
}

func (d *demo) badOS(ctx context.Context) error {
	osRef, err := d.os(ctx, "1.2.1", false)
	if err != nil {
		return err
	}
	ref, err := d.publish(ctx, platform("1.2.1", "1.2.1", osRef, nil), true)
	if err != nil {
		return err
	}
	if err := d.commit(ctx, "platform 1.2.1, with an unhealthy OS", "1.2.1", ref); err != nil {
		return err
	}
	message, err := d.condition(ctx, &v1alpha1.NodeOS{}, "workers", v1alpha1.ConditionHalted, metav1.ConditionTrue, "")
	if err != nil {
		return err
	}
	d.s.show("kubectl get nodeos workers -o jsonpath=…Halted", message)
	var pool v1alpha1.NodeOS
	if err := d.w.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "workers"}, &pool); err != nil {
		return fmt.Errorf("NodeOS/workers: %w", err)
	}
	_, digest, _ := strings.Cut(osRef, "@")
	if len(pool.Status.Denied) != 1 || pool.Status.Denied[0].Digest != digest || pool.Status.Denied[0].Scope != "host" || len(pool.Status.Denied[0].Hosts) != 1 {
		return fmt.Errorf("denied is %+v, want %s on one host", pool.Status.Denied, digest)
	}
	d.s.note("%s denies %s…; the other hosts were not changed", pool.Status.Denied[0].Hosts[0], digest[:19])
	if err := d.booted(ctx, "1.1.0", time.Minute); err != nil {
		return fmt.Errorf("every host should run 1.1.0: %w", err)
	}
	return d.status(ctx)
}

func (d *demo) revert(ctx context.Context) error {
	git := d.w.Git
	for _, hash := range slices.Backward(d.since) {
		if _, err := git.Run(ctx, "revert", "--no-commit", hash); err != nil {
			return err
		}
	}
	if _, err := git.Run(ctx, "revert", "--no-commit", "-m", "1", d.merge); err != nil {
		return err
	}
	d.since = nil
	if _, err := git.Commit(ctx, d.w.Key("admin"), "Revert to platform 1.0.0", nil); err != nil {
		return err
	}
	if err := git.Push(ctx, "main"); err != nil {
		return err
	}
	d.s.note("git revert … && git push")
	if err := d.applied(ctx, "1.0.0", 5*time.Minute); err != nil {
		return err
	}
	if err := d.settings(ctx, "1.0.0"); err != nil {
		return err
	}
	if err := d.booted(ctx, "1.0.0", 10*time.Second); err != nil {
		return err
	}
	return d.status(ctx)
}

func (d *demo) kill(ctx context.Context) error {
	if err := d.commit(ctx, "platform 1.1.0 again", "1.1.0", d.second); err != nil {
		return err
	}
	var caught string
	err := env.Wait(ctx, 2*time.Minute, func(ctx context.Context) error {
		var pool v1alpha1.NodeOS
		if err := d.w.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "workers"}, &pool); err != nil {
			return err
		}
		for _, f := range pool.Status.InFlight {
			if f.State == "Draining" || f.State == "Drained" || f.State == "Rebooting" || f.State == "Verifying" {
				caught = f.Host + " " + f.State
				return nil
			}
		}
		return errors.New("no host is in flight yet")
	})
	if err != nil {
		return err
	}
	if err := d.w.Reconciler.Kill(); err != nil {
		return err
	}
	d.s.note("killed the reconciler (SIGKILL) while %s", caught)
	if err := d.w.StartReconciler(); err != nil {
		return err
	}
	d.s.note("started a new reconciler")
	if err := d.applied(ctx, "1.1.0", 5*time.Minute); err != nil {
		return err
	}
	return d.booted(ctx, "1.1.0", 10*time.Second)
}

func (d *demo) boundaries(ctx context.Context) error {
	osRef, err := d.os(ctx, "1.1.1", true)
	if err != nil {
		return err
	}
	evil := platform("1.1.1", "1.1.1", osRef, map[string]string{
		"trust.yaml": "apiVersion: lockstep.dev/v1alpha1\nkind: TrustPolicy\nmetadata: {name: root, namespace: lockstep-system}\nspec: {envelope: \"{}\"}\n",
	})
	if _, err := d.w.BuildRelease(ctx, evil); err == nil {
		return errors.New("lockstep release build accepted a release with a TrustPolicy")
	}
	d.s.note("lockstep release build rejects such a release; it is built without lockstep, and signed")
	ref, err := d.w.PushUnchecked(ctx, evil)
	if err != nil {
		return err
	}
	if err := d.w.Sign(ctx, "release", ref); err != nil {
		return err
	}
	if err := d.commit(ctx, "platform 1.1.1, with a TrustPolicy", "1.1.1", ref); err != nil {
		return err
	}
	message, err := d.condition(ctx, &v1alpha1.ClusterRelease{}, "platform", v1alpha1.ConditionReleaseAccepted, metav1.ConditionFalse, "ForbiddenObject")
	if err != nil {
		return err
	}
	d.s.show("kubectl get clusterrelease platform -o jsonpath=…ReleaseAccepted", message)
	if err := d.commit(ctx, "Return to platform 1.1.0", "1.1.0", d.second); err != nil {
		return err
	}
	if err := d.applied(ctx, "1.1.0", time.Minute); err != nil {
		return err
	}
	return d.stranger(ctx)
}

// stranger pushes a commit that is signed by a key without the git role.
func (d *demo) stranger(ctx context.Context) error {
	if _, err := env.NewSSHKey(d.w.Path("stranger"), "stranger"); err != nil {
		return err
	}
	hash, err := d.w.Git.Commit(ctx, d.w.Path("stranger"), "platform 1.0.0 by a stranger", map[string]string{declared: release("1.0.0", d.first)})
	if err != nil {
		return err
	}
	if err := d.w.Git.Push(ctx, "main"); err != nil {
		return err
	}
	message, err := d.condition(ctx, &v1alpha1.GitSource{}, "fleet", v1alpha1.ConditionSourceVerified, metav1.ConditionFalse, "WrongAuthority")
	if err != nil {
		return err
	}
	d.s.show("kubectl get gitsource fleet -o jsonpath=…SourceVerified", message)
	var source v1alpha1.GitSource
	if err := d.w.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "fleet"}, &source); err != nil {
		return fmt.Errorf("GitSource/fleet: %w", err)
	}
	if strings.Contains(source.Status.AcceptedRevision.Revision, hash) {
		return errors.New("the stranger's commit was accepted")
	}
	if err := d.settings(ctx, "1.1.0"); err != nil {
		return err
	}
	if err := d.statusBranch(ctx, "WrongAuthority"); err != nil {
		return err
	}
	log, err := d.w.Git.StatusLog(ctx, env.Cluster, "--format=%h %s", "-12")
	if err != nil {
		return err
	}
	d.s.show("git log origin/lockstep-status/"+env.Cluster, log)
	return nil
}

// applied waits until the release is complete at a version, and reports its
// progress.
func (d *demo) applied(ctx context.Context, version string, timeout time.Duration) error {
	last := ""
	return env.Wait(ctx, timeout, func(ctx context.Context) error {
		var obj v1alpha1.ClusterRelease
		if err := d.w.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: "platform"}, &obj); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil {
			return errors.New("ClusterRelease/platform has no status yet")
		}
		if ready.Message != last {
			last = ready.Message
			d.s.note("ClusterRelease/platform: %s", last)
		}
		if obj.Status.Applied == nil || obj.Status.Applied.Version != version || ready.Status != metav1.ConditionTrue {
			return fmt.Errorf("ClusterRelease/platform: %s", ready.Message)
		}
		return nil
	})
}

// settings checks the release's ConfigMap in the cluster.
func (d *demo) settings(ctx context.Context, version string) error {
	return env.Wait(ctx, 20*time.Second, func(ctx context.Context) error {
		var cm corev1.ConfigMap
		if err := d.w.Client.Get(ctx, client.ObjectKey{Namespace: "web", Name: "settings"}, &cm); err != nil {
			return err
		}
		if cm.Data["release"] != version {
			return fmt.Errorf("ConfigMap web/settings is of release %q, want %q", cm.Data["release"], version)
		}
		return nil
	})
}

// booted waits until every host runs a version and is schedulable.
func (d *demo) booted(ctx context.Context, version string, timeout time.Duration) error {
	return env.Wait(ctx, timeout, func(ctx context.Context) error {
		for name := range d.w.Hosts {
			got, err := d.w.Booted(ctx, name)
			if err != nil {
				return err
			}
			if got != version {
				return fmt.Errorf("%s runs OS %s, want %s", name, got, version)
			}
		}
		return nil
	})
}

// condition waits for a condition and returns its message.
func (d *demo) condition(ctx context.Context, obj client.Object, name, kind string, status metav1.ConditionStatus, reason string) (string, error) {
	var message string
	err := env.Wait(ctx, 3*time.Minute, func(ctx context.Context) error {
		if err := d.w.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: name}, obj); err != nil {
			return err
		}
		conditioned, ok := obj.(interface{ GetConditions() []metav1.Condition })
		if !ok {
			return fmt.Errorf("%T has no conditions", obj)
		}
		c := meta.FindStatusCondition(conditioned.GetConditions(), kind)
		if c == nil || c.Status != status || reason != "" && c.Reason != reason {
			return fmt.Errorf("condition %s of %s is %+v, want %s %s", kind, name, c, status, reason)
		}
		message = c.Message
		return nil
	})
	return message, err
}

// statusBranch waits until the README.md of the status branch contains a word.
func (d *demo) statusBranch(ctx context.Context, word string) error {
	return env.Wait(ctx, 30*time.Second, func(ctx context.Context) error {
		page, err := d.w.Git.StatusFile(ctx, env.Cluster, "README.md")
		if err != nil {
			return err
		}
		if !strings.Contains(page, word) {
			return fmt.Errorf("the status branch's README.md lacks %q", word)
		}
		return nil
	})
}

// status prints lockstep status.
func (d *demo) status(ctx context.Context) error {
	out, err := d.w.Lockstep(ctx, "status")
	if err != nil {
		return err
	}
	d.s.show("lockstep status", out)
	return nil
}

// watchWorkload samples the web service and the nodes until the returned function
// is called, which returns violations: fewer than two available pods, or more than
// one node out of service.
func (d *demo) watchWorkload(ctx context.Context) func() error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		var worst error
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		samples := 0
		for {
			select {
			case <-ctx.Done():
				if worst == nil {
					d.s.note("in %d samples, at least 2 pods were available and at most one node was out of service", samples)
				}
				done <- worst
				return
			case <-ticker.C:
				samples++
				if err := d.violation(ctx); err != nil && ctx.Err() == nil && worst == nil {
					worst = err
				}
			}
		}
	}()
	return func() error {
		cancel()
		return <-done
	}
}

func (d *demo) violation(ctx context.Context) error {
	var api appsv1.Deployment
	if err := d.w.Client.Get(ctx, client.ObjectKey{Namespace: "web", Name: "api"}, &api); err != nil {
		return err
	}
	if api.Status.AvailableReplicas < 2 {
		return fmt.Errorf("deployment web/api has %d pods available, its budget requires 2", api.Status.AvailableReplicas)
	}
	var nodes corev1.NodeList
	if err := d.w.Client.List(ctx, &nodes); err != nil {
		return err
	}
	var out []string
	for i := range nodes.Items {
		_, err := d.w.ReadyNode(ctx, nodes.Items[i].Name)
		if err != nil || nodes.Items[i].Spec.Unschedulable {
			out = append(out, nodes.Items[i].Name)
		}
	}
	if len(out) > 1 {
		return fmt.Errorf("%s are out of service at the same time, maxUnavailable is 1", strings.Join(out, ", "))
	}
	return nil
}
