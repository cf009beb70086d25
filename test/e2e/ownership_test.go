// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/test/env"
)

// mapDoc is a ConfigMap document in the namespace platform.
func mapDoc(name, version string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: platform}\ndata: {version: \"" + version + "\"}\n"
}

// ownerOf returns the UID of a ConfigMap in the namespace platform and its field managers.
func ownerOf(ctx context.Context, w *env.Env, name string) (uid string, managers []string, err error) {
	var cm corev1.ConfigMap
	if err := w.Client.Get(ctx, client.ObjectKey{Namespace: "platform", Name: name}, &cm); err != nil {
		return "", nil, err
	}
	for _, e := range cm.ManagedFields {
		managers = append(managers, strings.TrimPrefix(e.Manager, "lockstep:clusterrelease/"))
	}
	slices.Sort(managers)
	return string(cm.UID), slices.Compact(managers), nil
}

// waitOwner waits until a release alone owns the ConfigMap, which is still the same
// object.
func waitOwner(t *testing.T, w *env.Env, name, uid, owner string) {
	t.Helper()
	must(t, env.Wait(t.Context(), 60*time.Second, func(ctx context.Context) error {
		got, managers, err := ownerOf(ctx, w, name)
		if err != nil || got != uid || !slices.Equal(managers, []string{owner}) {
			return fmt.Errorf("%s: UID %s, managers %v, %w; want UID %s of %s", name, got, managers, errors.Join(err), uid, owner)
		}
		return nil
	}))
}

func TestObjectsMoveBetweenReleasesAndReleasesAreRenamed(t *testing.T) {
	w := newEnvWith(t, env.Options{Audit: true})
	payloadOf := func(product, version string, maps ...string) string {
		t.Helper()
		extra := map[string]string{}
		for _, m := range maps {
			extra[m+".yaml"] = mapDoc(m, version)
		}
		ref, err := w.BuildRelease(t.Context(), configRelease(product, version, extra))
		must(t, err)
		return ref
	}
	sign := func(ref string) string {
		t.Helper()
		must(t, w.Sign(t.Context(), "release", ref))
		return ref
	}
	file := func(name string) string { return declarePath + name + ".yaml" }
	push(t, w, "one", map[string]string{
		file("platform"): declare("platform", "1.0.0", sign(payloadOf("platform", "1.0.0", "one", "two", "stays"))),
		file("site"):     declare("site", "1.0.0", sign(payloadOf("site", "1.0.0"))),
	})
	start(t, w)
	waitApplied(t, w, "platform", "1.0.0")
	waitApplied(t, w, "site", "1.0.0")
	uids := map[string]string{}
	for _, name := range []string{"one", "two", "stays"} {
		var err error
		uids[name], _, err = ownerOf(t.Context(), w, name)
		must(t, err)
	}
	mark, err := w.Control.MarkAudit()
	must(t, err)

	// The giver finishes first: the other release waits for it.
	push(t, w, "giver first", map[string]string{
		file("platform"): declare("platform", "1.1.0", sign(payloadOf("platform", "1.1.0", "two", "stays"))),
		file("site"):     declare("site", "1.1.0", sign(payloadOf("site", "1.1.0", "one"))) + "  dependsOn: [platform]\n",
	})
	waitApplied(t, w, "platform", "1.1.0")
	waitApplied(t, w, "site", "1.1.0")
	waitOwner(t, w, "one", uids["one"], "site")

	// The taker comes first: the giver's payload isn't signed yet.
	unsigned := payloadOf("platform", "1.2.0", "stays")
	push(t, w, "taker first", map[string]string{
		file("platform"): declare("platform", "1.2.0", unsigned) + "  interval: 10s\n", // retried within seconds
		file("site"):     declare("site", "1.2.0", sign(payloadOf("site", "1.2.0", "one", "two"))),
	})
	taker := &v1alpha1.ClusterRelease{}
	taker.Name, taker.Namespace = "site", v1alpha1.Namespace
	contains(t, waitCondition(t, w, taker, v1alpha1.ConditionReleaseAccepted, "False", "OwnedByOther"), "ConfigMap platform/two (clusterrelease/platform)")
	sign(unsigned)
	waitApplied(t, w, "site", "1.2.0")
	waitApplied(t, w, "platform", "1.2.0")
	waitOwner(t, w, "two", uids["two"], "site")

	// A rename in one commit. The old release stays, since nothing permits to delete
	// it, and then an old release that is deleted with its objects.
	renamed := sign(payloadOf("platform", "1.3.0", "stays"))
	push(t, w, "rename", map[string]string{
		file("platform"): "", file("next"): declare("next", "1.3.0", renamed) + "  adopt: [clusterrelease/platform]\n",
	})
	waitApplied(t, w, "next", "1.3.0")
	waitOwner(t, w, "stays", uids["stays"], "next")
	old := &v1alpha1.ClusterRelease{}
	old.Name, old.Namespace = "platform", v1alpha1.Namespace
	contains(t, waitCondition(t, w, old, v1alpha1.ConditionReady, "False", "RemovedFromGit"), "kubectl delete clusterrelease platform -n lockstep-system")
	doomed := func(name, adopt string) string {
		doc := declare(name, "1.4.0", renamed) + "  deletionPolicy: Prune\n" + adopt
		return strings.Replace(doc, "{name: "+name+"}", "{name: "+name+", annotations: {lockstep.dev/prune: enabled}}", 1)
	}
	renamed = sign(payloadOf("platform", "1.4.0", "stays"))
	push(t, w, "permit the deletion", map[string]string{file("next"): doomed("next", "  adopt: [clusterrelease/platform]\n")})
	waitApplied(t, w, "next", "1.4.0")
	push(t, w, "rename again", map[string]string{file("next"): "", file("last"): doomed("last", "  adopt: [clusterrelease/next]\n")})
	waitApplied(t, w, "last", "1.4.0")
	waitOwner(t, w, "stays", uids["stays"], "last")
	must(t, env.Wait(t.Context(), 60*time.Second, func(ctx context.Context) error {
		_, err := getRelease(ctx, w, "next")
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("ClusterRelease next: %w", errors.Join(err, errors.New("it exists")))
		}
		return nil
	}))

	requests, err := mark.Since()
	must(t, err)
	for _, r := range requests {
		if r.Verb == "delete" && (r.Namespace == "platform" || r.Resource == "namespaces") {
			t.Errorf("an object that moved was deleted: %s", r)
		}
	}
	// What the last release took over is still its own: the next version prunes it.
	last := sign(payloadOf("platform", "1.5.0"))
	push(t, w, "prune", map[string]string{file("last"): declare("last", "1.5.0", last) + "  prune: {maxPercent: 90}\n"})
	waitApplied(t, w, "last", "1.5.0")
	must(t, env.Wait(t.Context(), 60*time.Second, func(ctx context.Context) error {
		_, _, err := ownerOf(ctx, w, "stays")
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the object that left: %w", errors.Join(err, errors.New("it exists")))
		}
		return nil
	}))
	obj, err := getRelease(t.Context(), w, "site")
	must(t, err)
	if !meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("site: %+v", obj.Status.Conditions)
	}
}
