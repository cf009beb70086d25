// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// Editable is one kind: an object and a merge patch that changes a field of it.
type Editable struct {
	Resource     string // the plural
	object, edit string
}

// Editables are twenty kinds. NAME is the object's name; a namespace is added
// where the kind has one.
func Editables() []Editable {
	const pod = `{metadata: {labels: {app: NAME}}, spec: {containers: [{name: main, image: "registry.example.com/app:1"}]}}`
	const rules = `rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]`
	return []Editable{
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

// ClusterScoped is true for kinds without a namespace.
func (e Editable) ClusterScoped() bool {
	switch e.Resource {
	case "namespaces", "clusterroles", "priorityclasses", "storageclasses":
		return true
	default:
		return false
	}
}

// Make returns the i-th object of the kind, with a namespace unless the kind
// is cluster-scoped.
func (e Editable) Make(i int, namespace string) (Object, error) {
	name := fmt.Sprintf("edited-%s-%d", e.Resource, i)
	content := map[string]any{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(e.object, "NAME", name)), &content); err != nil {
		return Object{}, fmt.Errorf("object of %s: %w", e.Resource, err)
	}
	content = whole(content).(map[string]any)
	metadata, _ := content["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["name"] = name
	if !e.ClusterScoped() {
		metadata["namespace"] = namespace
	}
	content["metadata"] = metadata
	return Object{Content: content, Resource: e.Resource}, nil
}

// Patch returns the merge patch that changes a field, as JSON.
func (e Editable) Patch() ([]byte, error) {
	body, err := yaml.YAMLToJSON([]byte(e.edit))
	if err != nil {
		return nil, fmt.Errorf("edit of %s: %w", e.Resource, err)
	}
	return body, nil
}

// whole converts the floats of a YAML decoder to integers.
func whole(v any) any {
	switch x := v.(type) {
	case map[string]any:
		for k, item := range x {
			x[k] = whole(item)
		}
	case []any:
		for i, item := range x {
			x[i] = whole(item)
		}
	case float64:
		return int64(x)
	}
	return v
}
