// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

const (
	// platform is the release that keeps running whatever is rejected, and its
	// file in the repository.
	platform     = "platform"
	platformFile = declarePath + platform + ".yaml"
	// first is its version.
	first = "1.0.0"
	// probes is the number of ConfigMaps for testing drift repair: one per
	// test, because a contest over one object adds backoff.
	probes = 40
)

// stable is an environment with the complete release 1.0.0, which each test
// starts from and returns to.
type stable struct {
	w *env.Env
	// good is the reference of 1.0.0.
	good string
	used int
}

// platformRelease is a release of the platform at a version.
func platformRelease(version string, extra map[string]string) env.Release {
	files := map[string]string{}
	for i := range probes {
		name := probe(i)
		files[name+".yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: platform}\ndata: {version: \"" + version + "\"}\n"
	}
	maps.Copy(files, extra)
	return configRelease(platform, version, files)
}

func probe(i int) string { return fmt.Sprintf("probe-%02d", i) }

// newStable starts an environment and waits until 1.0.0 is complete.
func newStable(t *testing.T, hosts int) *stable {
	t.Helper()
	s := &stable{w: newEnv(t, hosts)}
	s.good = release(t, s.w, platformRelease(first, nil))
	files := map[string]string{platformFile: declare(platform, first, s.good)}
	if hosts > 0 {
		files[declarePath+"workers.yaml"] = pool("1.0.0", s.w.FirstOS())
	}
	push(t, s.w, "platform "+first, files)
	start(t, s.w)
	waitApplied(t, s.w, platform, first)
	if hosts > 0 {
		waitCondition(t, s.w, poolObject(), v1alpha1.ConditionReady, "True", "")
	}
	return s
}

// keepsRunning checks that 1.0.0 is still applied, and that an edit of one of its
// objects is still repaired.
func (s *stable) keepsRunning(t *testing.T) {
	t.Helper()
	s.repairs(t, first)
}

// repairs checks that a version is applied, and that an edit of one of its
// objects is repaired.
func (s *stable) repairs(t *testing.T, version string) {
	t.Helper()
	obj, err := getRelease(t.Context(), s.w, platform)
	must(t, err)
	if obj.Status.Applied == nil || obj.Status.Applied.Version != version {
		t.Fatalf("applied is %+v, want %s to go on", obj.Status.Applied, version)
	}
	name := probe(s.used % probes)
	s.used++
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: platform, Name: name}}
	must(t, s.w.Client.Patch(t.Context(), cm, client.RawPatch(types.MergePatchType, []byte(`{"data":{"version":"edited by hand"}}`))))
	must(t, env.Wait(t.Context(), 20*time.Second, func(ctx context.Context) error {
		if err := s.w.Client.Get(ctx, client.ObjectKeyFromObject(cm), cm); err != nil {
			return err
		}
		if cm.Data["version"] != version {
			return fmt.Errorf("%s says %q, want the edit undone: %s", name, cm.Data["version"], version)
		}
		return nil
	}))
}

// declares pushes a version of the platform, signed by admin.
func (s *stable) declares(t *testing.T, version, ref string) string {
	t.Helper()
	return push(t, s.w, "platform "+version, map[string]string{platformFile: declare(platform, version, ref)})
}

// back declares 1.0.0 again and waits until it is complete.
func (s *stable) back(t *testing.T) string {
	t.Helper()
	hash := s.declares(t, first, s.good)
	s.accepted(t, hash)
	waitApplied(t, s.w, platform, first)
	return hash
}

// refused waits until a version of a release is rejected for a reason, checks
// that both conditions and the status branch name it, and returns the message.
func (s *stable) refused(t *testing.T, name, version, reason string) string {
	t.Helper()
	var message string
	must(t, env.Wait(t.Context(), 60*time.Second, func(ctx context.Context) error {
		obj, err := getRelease(ctx, s.w, name)
		if err != nil {
			return err
		}
		if obj.Status.Accepted != nil && obj.Status.Accepted.Version == version {
			return fmt.Errorf("%s %s was accepted, want it refused: %s", name, version, reason)
		}
		accepted := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReleaseAccepted)
		ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
		if accepted == nil || accepted.Status != "False" || accepted.Reason != reason || accepted.ObservedGeneration != obj.Generation {
			return fmt.Errorf("%s %s: ReleaseAccepted is %+v, want False %s", name, version, accepted, reason)
		}
		if ready == nil || ready.Status != "False" || ready.Reason != reason || !strings.Contains(ready.Message, version) {
			return fmt.Errorf("%s %s: Ready is %+v, want False %s", name, version, ready, reason)
		}
		message = accepted.Message
		return nil
	}))
	s.page(t, reason, version)
	return message
}

// page waits until the README.md of the status branch contains all words.
func (s *stable) page(t *testing.T, words ...string) string {
	t.Helper()
	var page string
	must(t, env.Wait(t.Context(), 30*time.Second, func(ctx context.Context) error {
		var err error
		if page, err = s.w.Git.StatusFile(ctx, env.Cluster, "README.md"); err != nil {
			return err
		}
		for _, word := range words {
			if !strings.Contains(page, word) {
				return fmt.Errorf("README.md of the status branch doesn't say %q:\n%s", word, page)
			}
		}
		return nil
	}))
	return page
}

// sourceObject is the environment's GitSource by name.
func sourceObject() *v1alpha1.GitSource {
	return &v1alpha1.GitSource{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: "fleet"}}
}

// accepted waits until the source has accepted a commit.
func (s *stable) accepted(t *testing.T, hash string) {
	t.Helper()
	source := sourceObject()
	must(t, env.Wait(t.Context(), 60*time.Second, func(ctx context.Context) error {
		if err := s.w.Client.Get(ctx, client.ObjectKeyFromObject(source), source); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(source.Status.Conditions, v1alpha1.ConditionReady)
		if a := source.Status.AcceptedRevision; a == nil || !strings.Contains(a.Revision, hash) || ready == nil || ready.Status != "True" {
			return fmt.Errorf("accepted is %+v, want %s; Ready is %+v", a, hash, ready)
		}
		return nil
	}))
}

// rejected waits until a commit is rejected for a reason while the accepted
// state stays, and returns the message.
func (s *stable) rejected(t *testing.T, hash, reason string) string {
	t.Helper()
	source := sourceObject()
	var message string
	must(t, env.Wait(t.Context(), 60*time.Second, func(ctx context.Context) error {
		if err := s.w.Client.Get(ctx, client.ObjectKeyFromObject(source), source); err != nil {
			return err
		}
		if a := source.Status.AcceptedRevision; a != nil && strings.Contains(a.Revision, hash) {
			return fmt.Errorf("%s was accepted, want it refused: %s", hash, reason)
		}
		ready := meta.FindStatusCondition(source.Status.Conditions, v1alpha1.ConditionReady)
		attempted := source.Status.AttemptedRevision
		if ready == nil || ready.Status != "False" || ready.Reason != reason || attempted == nil || !strings.Contains(attempted.Revision, hash) {
			return fmt.Errorf("attempted %+v, want %s; Ready is %+v, want False %s", attempted, hash, ready, reason)
		}
		message = ready.Message
		return nil
	}))
	contains(t, message, "still at")
	s.page(t, reason)
	return message
}
