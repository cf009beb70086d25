// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"

	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/test/env"
)

// webImage is an image by digest; fake kubelets pull nothing.
const webImage = "registry.example.com/web/api@sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"

const baseManifest = `apiVersion: v1
kind: Namespace
metadata: {name: web}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: api, namespace: web}
`

func settingsManifest(version string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: web}
data: {release: "%s", greeting: hello}
`, version)
}

func webManifest(version string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api, release: "%s"}}
    spec:
      serviceAccountName: api
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: api}}}
      containers:
      - {name: api, image: "%s"}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: api, namespace: web}
spec:
  minAvailable: 2
  selector: {matchLabels: {app: api}}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: web}
spec:
  selector: {app: api}
  ports: [{port: 80, targetPort: 8080}]
`, version, webImage)
}

// nodeOSManifest is the pool of the hosts: short soak and deadlines, because the
// simulated machines boot in a second.
func nodeOSManifest(version, image string) string {
	return fmt.Sprintf(`apiVersion: lockstep.dev/v1alpha1
kind: NodeOS
metadata: {name: workers, namespace: lockstep-system}
spec:
  nodeSelector: {matchLabels: {node-restriction.kubernetes.io/pool: workers}}
  os: {version: %s, image: "%s"}
  strategy: {maxUnavailable: 1}
  drain: {timeout: 2m}
  gates: {timeout: 1m, soak: 1s}
  bootDeadline: 1m
  commitDeadline: 3m
`, version, image)
}

// platform is a release: a web service and the operating system of its hosts.
func platform(version, osVersion, osImage string, extra map[string]string) env.Release {
	base := map[string]string{"base.yaml": baseManifest, "settings.yaml": settingsManifest(version)}
	maps.Copy(base, extra)
	return env.Release{Product: "platform", Version: version, Components: []env.Component{
		{Name: "base", RunLevel: 10, Files: base},
		{Name: "web", RunLevel: 30, Files: map[string]string{"web.yaml": webManifest(version)}},
		{Name: "hosts", RunLevel: 50, Files: map[string]string{"workers.yaml": nodeOSManifest(osVersion, osImage)}},
	}}
}

// release is the declared ClusterRelease.
func release(version, image string) string {
	return fmt.Sprintf(`apiVersion: lockstep.dev/v1alpha1
kind: ClusterRelease
metadata: {name: platform}
spec:
  desired:
    version: %s
    image: %s
`, version, image)
}

// system is an operating system of the simulated machines.
func system(version string, healthy bool) sim.Document {
	return sim.Document{
		Product: "platform-os", Version: version, KubeletVersion: env.KubeletVersion,
		OSImage: "Platform OS " + version, BootSeconds: 1, Healthy: &healthy,
	}
}

// declared is the path of the ClusterRelease in the repository.
const declared = "clusters/" + env.Cluster + "/platform.yaml"
