// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockstep-dev/lockstep/payload"
)

// at moves a manifest to a run level and a component.
func at(level int, component string, m payload.Manifest) payload.Manifest {
	m.RunLevel, m.Component = level, component
	return m
}

func TestOrdersThatCannotWork(t *testing.T) {
	const pod = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: web}, spec: {template: {metadata: {labels: {app: web}}, spec: %s}}}`
	one := func(level int, component, doc string) payload.Manifest { return at(level, component, parse(t, doc)[0]) }
	type want struct{ updating, serial, initializing string }
	for name, tc := range map[string]struct {
		manifests []payload.Manifest
		want      want
	}{
		"a Secret in a later file": {
			[]payload.Manifest{one(20, "c", deployment), one(20, "c", secret)},
			want{serial: "CVO mode keeps the order of files"},
		},
		"a ServiceAccount in a later run level": {
			[]payload.Manifest{one(20, "c", deployment), one(30, "c", serviceAccount)},
			want{updating: "apps Deployment web/web (0.yaml:1) runs as ServiceAccount web/web (0.yaml:1), which is applied later in run level 30; move the latter to run level 20 or lower", serial: "runs as"},
		},
		"a ServiceAccount in another component": {[]payload.Manifest{one(20, "a", deployment), one(20, "b", serviceAccount)}, want{}},
		"a namespace in a later run level":      {[]payload.Manifest{one(20, "c", secret), one(30, "c", namespace)}, want{updating: "Secret web/web (0.yaml:1) is in Namespace web"}},
		"a CRD in a later run level":            {[]payload.Manifest{one(20, "c", widget), one(30, "c", widgetCRD)}, want{updating: "is defined by apiextensions.k8s.io CustomResourceDefinition widgets.example.com"}},
		"an API service in a later run level": {
			[]payload.Manifest{one(20, "c", widget), one(30, "c", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.example.com}, spec: {group: example.com, version: v1}}`)},
			want{updating: "is served by"},
		},
		"a Secret after the Job that needs it": {
			[]payload.Manifest{one(20, "c", strings.Replace(fmt.Sprintf(pod, "{containers: [{name: c, envFrom: [{secretRef: {name: web}}]}]}"), "apps/v1, kind: Deployment", "batch/v1, kind: Job", 1)), one(20, "c", secret)},
			want{updating: "reads its environment from Secret web/web (0.yaml:1), which is applied later than a Job", serial: "reads its environment", initializing: "later than a Job"},
		},
		"a Secret after a Job that doesn't need it": {
			[]payload.Manifest{one(20, "c", deployment), one(20, "c", job), one(20, "c", secret)},
			want{updating: "mounts Secret web/web", serial: "mounts"},
		},
		"an optional Secret": {
			[]payload.Manifest{one(20, "c", fmt.Sprintf(pod, "{volumes: [{name: s, secret: {secretName: web, optional: true}}]}")), one(30, "c", secret)}, want{},
		},
		"a workload without replicas": {[]payload.Manifest{one(20, "c", strings.Replace(deployment, "spec: {", "spec: {replicas: 0, ", 1)), one(30, "c", secret)}, want{}},
		"a workload that isn't awaited": {
			[]payload.Manifest{one(20, "c", strings.Replace(deployment, "name: web,", "name: web, annotations: {lockstep.dev/wait: none},", 1)), one(30, "c", secret)}, want{},
		},
		"the default ServiceAccount": {
			[]payload.Manifest{one(20, "c", fmt.Sprintf(pod, "{serviceAccountName: default}")), one(30, "c", strings.Replace(serviceAccount, "name: web,", "name: default,", 1))}, want{},
		},
		"a claim in a later run level": {
			[]payload.Manifest{one(20, "c", fmt.Sprintf(pod, "{volumes: [{name: s, persistentVolumeClaim: {claimName: data}}]}")), one(30, "c", claim)},
			want{updating: "mounts PersistentVolumeClaim web/data", serial: "mounts"},
		},
		"a storage class in a later run level": {
			[]payload.Manifest{one(20, "c", `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: web}, spec: {storageClassName: fast}}`), one(30, "c", `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fast}}`)},
			want{updating: "is of storage.k8s.io StorageClass fast", serial: "is of"},
		},
		"a webhook for all pods before its server": {
			[]payload.Manifest{one(10, "c", service), one(20, "c", webhook), one(30, "c", deployment)},
			want{updating: "rejects all new pods until its server runs: apps Deployment web/web", serial: "rejects"},
		},
		"a webhook that fails open before its server": {
			[]payload.Manifest{one(10, "c", service), one(20, "c", strings.Replace(webhook, "rules:", "failurePolicy: Ignore, rules:", 1)), one(30, "c", deployment)}, want{},
		},
		"a webhook with a selector before its server": {
			[]payload.Manifest{one(10, "c", service), one(20, "c", strings.Replace(webhook, "rules:", "namespaceSelector: {matchLabels: {a: b}}, rules:", 1)), one(30, "c", deployment)}, want{},
		},
		"a deleted Secret": {
			[]payload.Manifest{one(20, "c", deployment), one(30, "c", strings.Replace(secret, "name: web,", "name: web, annotations: {lockstep.dev/delete: \"true\"},", 1))}, want{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for label, check := range map[string]struct {
				state  payload.State
				serial bool
				want   string
			}{
				"updating": {payload.Updating, false, tc.want.updating}, "serial": {payload.Updating, true, tc.want.serial}, "initializing": {payload.Initializing, false, tc.want.initializing},
			} {
				got := CheckOrder(tc.manifests, check.state, check.serial, nil)
				switch {
				case check.want == "" && len(got) > 0:
					t.Errorf("%s: unexpected problem: %s", label, got[0].Message)
				case check.want != "" && (len(got) == 0 || !strings.Contains(got[0].Message, check.want)):
					t.Errorf("%s: problems %+v, want %q", label, got, check.want)
				}
				if there := CheckOrder(tc.manifests, check.state, check.serial, func(*payload.Manifest) bool { return true }); len(there) > 0 {
					t.Errorf("%s: problem with existing objects: %s", label, there[0].Message)
				}
			}
		})
	}
}

func TestAnOrderOfCVOIsCheckedForNamespacesOnlyWithACluster(t *testing.T) {
	ms := parse(t, secret, namespace)
	ms[1].RunLevel = 30
	if got := CheckOrder(ms, payload.Updating, true, nil); len(got) > 0 {
		t.Errorf("problem without a cluster: %s", got[0].Message)
	}
	if got := CheckOrder(ms, payload.Updating, true, func(*payload.Manifest) bool { return false }); len(got) != 1 {
		t.Errorf("problems %v, want one", got)
	}
}

// drawRelease draws a release of workloads and what they need, in any order of
// files, components and run levels.
func drawRelease(tb testing.TB, t *rapid.T) []payload.Manifest {
	tb.Helper()
	docs := []string{
		namespace, serviceAccount, secret, claim, deployment, service, webhook, widget, widgetCRD, job, loadBalancer,
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: web}}`,
		`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: web}, spec: {template: {spec: {volumes: [{name: d, persistentVolumeClaim: {claimName: data}}],
  containers: [{name: c, envFrom: [{configMapRef: {name: web}}]}]}}}}`,
		`{apiVersion: batch/v1, kind: Job, metadata: {name: seed, namespace: web}, spec: {template: {spec: {serviceAccountName: web}}}}`,
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: web}}`,
	}
	ms := parse(tb, rapid.Permutation(docs).Draw(t, "files")[:rapid.IntRange(1, len(docs)).Draw(t, "n")]...)
	for i := range ms {
		ms[i].RunLevel = rapid.IntRange(0, 2).Draw(t, "level") / 2 * 10
		ms[i].Component = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "component")
	}
	// The names of files begin with their run level.
	slices.SortStableFunc(ms, func(a, b payload.Manifest) int { return a.RunLevel - b.RunLevel })
	return ms
}

// needsOf models what an object needs to be applied or to become ready, among the
// objects of a release.
func needsOf(release map[string]bool, m *payload.Manifest) (apply, ready []string) {
	switch key(m) {
	case "Widget w":
		// Its webhook is live: it rejects widgets until the server runs.
		apply = []string{"CustomResourceDefinition widgets.example.com"}
	case "Deployment web":
		ready = []string{"ServiceAccount web", "Secret web"}
	case "StatefulSet db":
		ready = []string{"PersistentVolumeClaim data", "ConfigMap web"}
	case "Job seed":
		ready = []string{"ServiceAccount web"}
	case "PersistentVolumeClaim data":
		ready = []string{"StatefulSet db"} // its first consumer
	case "Service lb":
		if release["controller"] {
			ready = []string{"Deployment web"}
		}
	}
	if m.ID.Namespace != "" {
		apply = append(apply, "Namespace web")
	}
	keep := func(list []string) (out []string) {
		for _, name := range list {
			if release[name] {
				out = append(out, name)
			}
		}
		return out
	}
	return keep(apply), keep(ready)
}

// attempt walks the graph once; a wait for something that can't happen any more
// fails.
func attempt(tb testing.TB, c *cluster, g *Graph) Result {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	var waits, waiting atomic.Int64
	go func() {
		// The walk is stuck once nothing but waits runs, for several observations.
		for still, last := 0, int64(-1); still < 20; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Millisecond):
			}
			if now := waits.Load(); waiting.Load() > 0 && now == last {
				still++
			} else {
				still, last = 0, now
			}
		}
		cancel()
	}()
	return Walk(ctx, g, 3, func(ctx context.Context, m *payload.Manifest) error {
		waits.Add(1)
		return c.apply(ctx, m)
	}, func(ctx context.Context, m *payload.Manifest) error {
		waiting.Add(1)
		err := c.await(ctx, m)
		waiting.Add(-1)
		waits.Add(1)
		return err
	})
}

func modelled(ms []payload.Manifest) *cluster {
	release, in := map[string]bool{}, map[string]string{}
	for i := range ms {
		release[key(&ms[i])] = true
		in[key(&ms[i])] = fmt.Sprint(ms[i].RunLevel, ms[i].Component)
	}
	// The controller of load balancers is in their component.
	release["controller"] = in["Service lb"] == in["Deployment web"]
	c := newCluster()
	c.rejects = func(exists map[string]bool, m *payload.Manifest) string {
		apply, _ := needsOf(release, m)
		for _, name := range apply {
			if !exists[name] {
				return "no " + name
			}
		}
		if exists["ValidatingWebhookConfiguration hook"] && !exists["Deployment web"] && release["Deployment web"] && release["Service web"] {
			return "the webhook isn't served"
		}
		return ""
	}
	c.unready = func(exists map[string]bool, m *payload.Manifest) string {
		_, ready := needsOf(release, m)
		for _, name := range ready {
			if !exists[name] {
				return "no " + name
			}
		}
		return ""
	}
	return c
}

// install walks until the release is complete, at most a few times as the worker
// does.
func install(tb testing.TB, ms []payload.Manifest, state payload.State) error {
	tb.Helper()
	c := modelled(ms)
	var last Result
	for range 4 {
		if last = attempt(tb, c, Build(ms, state, Order{})); last.Complete() {
			break
		}
	}
	if !last.Complete() {
		return fmt.Errorf("%+v after %q", last, c.log)
	}
	if state != payload.Initializing {
		return nil
	}
	// The worker awaits the rest of a first install at the end.
	for i := range ms {
		if why := c.unready(c.exists, &ms[i]); why != "" {
			return errors.New(why)
		}
	}
	return nil
}

func TestAnUpdateWorksWheneverAFirstInstallDoes(t *testing.T) {
	worked := 0
	rapid.Check(t, func(r *rapid.T) {
		ms := drawRelease(t, r)
		if problems := CheckOrder(ms, payload.Updating, false, nil); len(problems) > 0 {
			return // Rejected at build.
		}
		if err := install(t, ms, payload.Initializing); err != nil {
			r.Fatalf("a first install doesn't work, though no problem was reported: %v", err)
		}
		if err := install(t, ms, payload.Updating); err != nil {
			r.Fatalf("the update doesn't work, though the first install does: %v", err)
		}
		worked++
	})
	if worked == 0 {
		t.Error("no release was accepted")
	}
}

func TestAReportedOrderDoesNotWork(t *testing.T) {
	reported := 0
	rapid.Check(t, func(r *rapid.T) {
		ms := drawRelease(t, r)
		problems := CheckOrder(ms, payload.Updating, false, nil)
		if len(problems) == 0 {
			return
		}
		reported++
		if err := install(t, ms, payload.Updating); err == nil {
			r.Fatalf("the update works, though a problem was reported: %s", problems[0].Message)
		}
	})
	if reported == 0 {
		t.Error("no order was reported")
	}
}
