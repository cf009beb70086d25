// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
)

// editable is one kind: an object and a merge patch that changes a field of it.
type editable struct{ resource, object, edit string }

// editables are twenty kinds. NAME is the object's name; a namespace is added
// where the kind has one.
func editables() []editable {
	const pod = `{metadata: {labels: {app: NAME}}, spec: {containers: [{name: main, image: "registry.example.com/app:1"}]}}`
	const rules = `rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]`
	return []editable{
		{"configmaps", `{apiVersion: v1, kind: ConfigMap, data: {a: "1"}}`, `{data: {a: "2"}}`},
		{"secrets", `{apiVersion: v1, kind: Secret, data: {a: MQ==}}`, `{data: {a: Mg==}}`},
		{"serviceaccounts", `{apiVersion: v1, kind: ServiceAccount, automountServiceAccountToken: false}`, `{automountServiceAccountToken: true}`},
		{"services", `{apiVersion: v1, kind: Service, spec: {selector: {app: NAME}, ports: [{port: 80}]}}`, `{spec: {selector: {app: other}}}`},
		{"resourcequotas", `{apiVersion: v1, kind: ResourceQuota, spec: {hard: {pods: "10"}}}`, `{spec: {hard: {pods: "20"}}}`},
		{"limitranges", `{apiVersion: v1, kind: LimitRange, spec: {limits: [{type: Pod, max: {cpu: "1"}}]}}`, `{spec: {limits: [{type: Pod, max: {cpu: "2"}}]}}`},
		{"namespaces", `{apiVersion: v1, kind: Namespace, metadata: {labels: {tier: a}}}`, `{metadata: {labels: {tier: b}}}`},
		{"deployments", `{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 2, selector: {matchLabels: {app: NAME}}, template: ` + pod + `}}`, `{spec: {minReadySeconds: 5, template: {spec: {containers: [{name: main, image: "registry.example.com/app:2"}]}}}}`},
		{"statefulsets", `{apiVersion: apps/v1, kind: StatefulSet, spec: {serviceName: NAME, replicas: 2, selector: {matchLabels: {app: NAME}}, template: ` + pod + `}}`, `{spec: {template: {spec: {containers: [{name: main, image: "registry.example.com/app:2"}]}}}}`},
		{"daemonsets", `{apiVersion: apps/v1, kind: DaemonSet, spec: {selector: {matchLabels: {app: NAME}}, template: ` + pod + `}}`, `{spec: {template: {spec: {containers: [{name: main, image: "registry.example.com/app:2"}]}}}}`},
		{"cronjobs", `{apiVersion: batch/v1, kind: CronJob, spec: {schedule: "0 * * * *", jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: "registry.example.com/app:1"}]}}}}}}`, `{spec: {schedule: "5 * * * *"}}`},
		{"poddisruptionbudgets", `{apiVersion: policy/v1, kind: PodDisruptionBudget, spec: {minAvailable: 1, selector: {matchLabels: {app: NAME}}}}`, `{spec: {minAvailable: 2}}`},
		{"horizontalpodautoscalers", `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: none}}}`, `{spec: {maxReplicas: 4}}`},
		{"networkpolicies", `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, spec: {podSelector: {matchLabels: {app: NAME}}, policyTypes: [Ingress]}}`, `{spec: {podSelector: {matchLabels: {app: other}}}}`},
		{"ingresses", `{apiVersion: networking.k8s.io/v1, kind: Ingress, spec: {defaultBackend: {service: {name: a, port: {number: 80}}}}}`, `{spec: {defaultBackend: {service: {name: b}}}}`},
		{"roles", `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, ` + rules + `}`, `{rules: []}`},
		{"rolebindings", `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: a}, subjects: [{kind: ServiceAccount, name: a, namespace: default}]}`, `{subjects: []}`},
		{"clusterroles", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, ` + rules + `}`, `{rules: []}`},
		{"priorityclasses", `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, value: 10, description: a}`, `{description: b}`},
		{"storageclasses", `{apiVersion: storage.k8s.io/v1, kind: StorageClass, provisioner: example.com/disk, allowVolumeExpansion: false}`, `{allowVolumeExpansion: true}`},
	}
}

// clusterScoped are the kinds of editables without a namespace.
func clusterScoped(resource string) bool {
	switch resource {
	case "namespaces", "clusterroles", "priorityclasses", "storageclasses":
		return true
	default:
		return false
	}
}

// editsEach is how many objects of a kind are edited in a round, each once: one
// that is edited again and again is a contest, and is answered ever later.
const editsEach = 3

// repairRows edits one object after the other as somebody else, and waits until
// the engine has had its repair answered.
func repairRows(ctx context.Context, b *bench) ([]result, error) {
	var took []float64
	kinds := len(editables())
	rounds := min(b.rounds, fewRounds)
	for round := range rounds {
		b.log("repair: round %d of %d", round+1, rounds)
		if err := b.onPlane(ctx, func(p *plane) error {
			some, err := repairRound(ctx, p)
			took = append(took, some...)
			return err
		}); err != nil {
			return nil, err
		}
	}
	what := fmt.Sprintf("edit → repaired, %d kinds, %d edits", kinds, len(took))
	return []result{
		shown(what+": p50", median(took), "ms", ""),
		shown(what+": p95", quantile(took, 0.95), "ms", "Flux: its interval; CVO: up to 4.7 min").atMost(50),
	}, nil
}

func repairRound(ctx context.Context, p *plane) ([]float64, error) {
	var objects []object
	for i := range editsEach {
		for _, e := range editables() {
			o, err := e.make(i)
			if err != nil {
				return nil, err
			}
			objects = append(objects, o)
		}
	}
	if err := p.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: edits}\n")); err != nil {
		return nil, err
	}
	ms, err := manifests(objects)
	if err != nil {
		return nil, err
	}
	byID := map[payload.ObjectID]*payload.Manifest{}
	for i := range ms {
		byID[ms[i].ID] = &ms[i]
	}
	repaired := make(chan payload.ObjectID, len(ms))
	o, err := startOurs(ctx, p.Config, "repair", func(ctx context.Context, e *apply.Engine, id payload.ObjectID) {
		if change, err := e.Apply(ctx, byID[id], apply.Reconciling); err == nil && change.Action == apply.Repaired {
			repaired <- id
		}
	})
	if err != nil {
		return nil, err
	}
	defer o.close()
	if _, err := o.pass(ctx, ms, payload.Initializing, true); err != nil {
		return nil, err
	}
	if err := p.settle(ctx); err != nil {
		return nil, err
	}
	return edit(ctx, p, ms, repaired)
}

// make makes the i-th object of the kind.
func (e editable) make(i int) (object, error) {
	name := fmt.Sprintf("edited-%s-%d", e.resource, i)
	content := map[string]any{}
	if err := yaml.Unmarshal([]byte(replaceName(e.object, name)), &content); err != nil {
		return object{}, fmt.Errorf("object of %s: %w", e.resource, err)
	}
	content = whole(content).(map[string]any)
	metadata, _ := content["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["name"] = name
	if !clusterScoped(e.resource) {
		metadata["namespace"] = "edits"
	}
	content["metadata"] = metadata
	return object{content: content, resource: e.resource}, nil
}

// edit changes each object once. The clock runs from before the edit is sent
// to when the repair is answered.
func edit(ctx context.Context, p *plane, ms []payload.Manifest, repaired <-chan payload.ObjectID) ([]float64, error) {
	client, err := dynamic.NewForConfig(p.Config)
	if err != nil {
		return nil, fmt.Errorf("client that edits: %w", err)
	}
	kinds := editables()
	var took []float64
	for i := range ms {
		e := kinds[i%len(kinds)]
		body, err := yaml.YAMLToJSON([]byte(e.edit))
		if err != nil {
			return nil, fmt.Errorf("edit of %s: %w", e.resource, err)
		}
		resource := client.Resource(ms[i].GVK.GroupVersion().WithResource(e.resource)).Namespace(ms[i].ID.Namespace)
		began := time.Now()
		var edited *unstructured.Unstructured
		if edited, err = resource.Patch(ctx, ms[i].ID.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
			return nil, fmt.Errorf("edit %s: %w", ms[i].ID, err)
		}
		select {
		case id := <-repaired:
			if id != ms[i].ID {
				return nil, fmt.Errorf("%s was repaired though %s was edited", id, ms[i].ID)
			}
			took = append(took, milliseconds(time.Since(began)))
		case <-time.After(10 * time.Second):
			return nil, fmt.Errorf("%s was edited (resource version %s) and not repaired in ten seconds", ms[i].ID, edited.GetResourceVersion())
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return took, nil
}
