// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// need is an object that another one requires.
type need struct {
	id payload.ObjectID
	// why relates both, such as "mounts".
	why string
}

// readinessNeeds returns the objects without which an object never becomes ready:
// those that the API server or the kubelet requires before a pod starts. Optional
// references are none.
func readinessNeeds(m *payload.Manifest) []need {
	if m.Delete || m.Wait == payload.WaitNone {
		return nil
	}
	if m.ID.GroupKind() == kinds.PersistentVolumeClaim {
		class, _ := mapAt(m.Object.Object, "spec")["storageClassName"].(string)
		if class == "" {
			return nil
		}
		return []need{{id(kinds.StorageClass.Group, kinds.StorageClass.Kind, "", class), "is of"}}
	}
	return podNeeds(m)
}

// podNeeds returns the objects that the pods of a workload need to start.
func podNeeds(m *payload.Manifest) []need {
	spec := podSpec(m)
	if spec == nil {
		return nil
	}
	c := collector{namespace: m.ID.Namespace}
	if name := text(spec, "serviceAccountName"); name != "" && name != "default" {
		c.add(kinds.ServiceAccount.Kind, name, "runs as")
	}
	for group, name := range map[string]string{
		kinds.PriorityClass.Group: text(spec, "priorityClassName"), kinds.RuntimeClass.Group: text(spec, "runtimeClassName"),
	} {
		kind := kinds.PriorityClass.Kind
		if group == kinds.RuntimeClass.Group {
			kind = kinds.RuntimeClass.Kind
		}
		if name != "" {
			c.needs = append(c.needs, need{id(group, kind, "", name), "is of"})
		}
	}
	for _, volume := range mapsAt(spec, "volumes") {
		c.volume(volume)
	}
	for _, list := range []string{"initContainers", "containers"} {
		for _, container := range mapsAt(spec, list) {
			c.container(container)
		}
	}
	return c.needs
}

// collector collects the references of a pod.
type collector struct {
	namespace string
	needs     []need
}

func (c *collector) add(kind, name, why string) {
	if name != "" {
		c.needs = append(c.needs, need{id("", kind, c.namespace, name), why})
	}
}

// ref adds a reference unless it is optional.
func (c *collector) ref(kind string, source map[string]any, key, why string) {
	if optional, _ := source["optional"].(bool); !optional {
		c.add(kind, text(source, key), why)
	}
}

func (c *collector) volume(v map[string]any) {
	c.ref(kinds.Secret.Kind, mapAt(v, "secret"), "secretName", "mounts")
	c.ref(kinds.ConfigMap.Kind, mapAt(v, "configMap"), "name", "mounts")
	c.ref(kinds.PersistentVolumeClaim.Kind, mapAt(v, "persistentVolumeClaim"), "claimName", "mounts")
	c.ref(kinds.Secret.Kind, mapAt(mapAt(v, "csi"), "nodePublishSecretRef"), "name", "mounts a volume with")
	for _, source := range mapsAt(mapAt(v, "projected"), "sources") {
		c.ref(kinds.Secret.Kind, mapAt(source, "secret"), "name", "mounts")
		c.ref(kinds.ConfigMap.Kind, mapAt(source, "configMap"), "name", "mounts")
	}
}

func (c *collector) container(container map[string]any) {
	const why = "reads its environment from"
	for _, from := range mapsAt(container, "envFrom") {
		c.ref(kinds.Secret.Kind, mapAt(from, "secretRef"), "name", why)
		c.ref(kinds.ConfigMap.Kind, mapAt(from, "configMapRef"), "name", why)
	}
	for _, env := range mapsAt(container, "env") {
		from := mapAt(env, "valueFrom")
		c.ref(kinds.Secret.Kind, mapAt(from, "secretKeyRef"), "name", why)
		c.ref(kinds.ConfigMap.Kind, mapAt(from, "configMapKeyRef"), "name", why)
	}
}

// podSpec returns the pod spec of a workload whose pods are awaited, nil for other
// kinds and for workloads without pods.
func podSpec(m *payload.Manifest) map[string]any {
	spec := mapAt(m.Object.Object, "spec")
	if replicas, ok := spec["replicas"].(int64); ok && replicas == 0 {
		return nil
	}
	switch m.ID.GroupKind() {
	case kinds.Deployment, kinds.DaemonSet, kinds.StatefulSet, kinds.Job:
		return mapAt(mapAt(spec, "template"), "spec")
	case kinds.Pod:
		return spec
	default:
		return nil
	}
}

// awaitedLate reports whether an object's readiness depends on workloads that may be
// anywhere in its component: a controller that assigns the address of a load
// balancer, a pod that uses a claim, a server of webhooks or of an aggregated API.
func awaitedLate(m *payload.Manifest, stage kinds.Stage) bool {
	switch m.ID.GroupKind() {
	case kinds.PersistentVolumeClaim:
		return true
	case kinds.Service:
		return text(mapAt(m.Object.Object, "spec"), "type") == "LoadBalancer"
	default:
		return stage == kinds.Admission
	}
}

// registered returns the group and version of an APIService.
func registered(m *payload.Manifest) string {
	spec := mapAt(m.Object.Object, "spec")
	return text(spec, "group") + "/" + text(spec, "version")
}

func id(group, kind, namespace, name string) payload.ObjectID {
	return payload.ObjectID{Group: group, Kind: kind, Namespace: namespace, Name: name}
}

// mapAt returns the mapping at key, nil if there is none.
func mapAt(content map[string]any, key string) map[string]any {
	out, _ := content[key].(map[string]any)
	return out
}

// mapsAt returns the mappings of the list at key.
func mapsAt(content map[string]any, key string) []map[string]any {
	list, _ := content[key].([]any)
	out := make([]map[string]any, 0, len(list))
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// text returns the string at key, "" if there is none.
func text(content map[string]any, key string) string {
	out, _ := content[key].(string)
	return out
}
