// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: web}
spec:
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      containers:
      - name: c
        image: x
`

// problemsOf returns the lines of the error of a build.
func problemsOf(t *testing.T, files map[string]string) []string {
	t.Helper()
	_, err := buildFiles(t, files)
	if err == nil {
		t.Fatal("it was built")
	}
	return strings.Split(err.Error(), "\n")
}

func TestProblemsOfKnownKindsHaveFileLineAndFix(t *testing.T) {
	for name, tc := range map[string]struct {
		content string
		want    []string
	}{
		"numbers for strings": {"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: web\n  labels: {retries: 3}\ndata:\n  port: 8080\n  debug: true\n  ratio: 0.5\n", []string{
			"web/a.yaml:6 (document 1): ConfigMap web/a: metadata.labels.retries is a number, must be a string; quote it",
			"web/a.yaml:8 (document 1): ConfigMap web/a: data.port is a number, must be a string; quote it",
			"web/a.yaml:9 (document 1): ConfigMap web/a: data.debug is a boolean, must be a string; quote it",
			"web/a.yaml:10 (document 1): ConfigMap web/a: data.ratio is a number, must be a string; quote it",
		}},
		"a numeric label of a custom resource": {"apiVersion: example.com/v1\nkind: X\nmetadata: {name: a, annotations: {count: 1}}\n", []string{
			"web/a.yaml:3 (document 1): example.com X a: metadata.annotations.count is a number, must be a string; quote it",
		}},
		"no base64": {"apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: web}\ndata:\n  password: not base64!\n", []string{
			"web/a.yaml:5 (document 1): Secret web/a: data.password isn't base64; encode it, or write plain text in stringData",
		}},
		"a key that a ConfigMap can't have": {cm("a") + "data:\n  a+b: c\n", []string{
			`web/a.yaml:5 (document 1): ConfigMap web/a: data has the key "a+b", must have only letters, digits, '-', '_' and '.' in keys; in a kustomization, write KEY=FILE`,
		}},
		"strings for numbers": {"# c\n---\napiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: web}\nspec:\n  ports:\n  - port: \"80\"\n", []string{
			"web/a.yaml:8 (document 1): Service web/a: spec.ports[0].port is a string, must be a number; remove the quotes",
		}},
		"a string for replicas, a bad quantity and a list": {strings.Replace(strings.Replace(deployment, "spec:\n  sel", "spec:\n  replicas: three\n  sel", 1), "image: x", "image: x\n        resources: {limits: {memory: 1 GB}}\n        args: run\n        tty: \"true\"", 1), []string{
			"web/a.yaml:5 (document 1): apps Deployment web/d: spec.replicas is a string, must be a number",
			"web/a.yaml:13 (document 1): apps Deployment web/d: spec.template.spec.containers[0].resources.limits.memory is a string that isn't a valid Quantity",
			"web/a.yaml:14 (document 1): apps Deployment web/d: spec.template.spec.containers[0].args is a string, must be a list",
			"web/a.yaml:15 (document 1): apps Deployment web/d: spec.template.spec.containers[0].tty is a string, must be true or false; remove the quotes",
		}},
		"a variable twice": {deployment + "        env:\n        - {name: A, value: \"1\"}\n        - {name: B}\n        - {name: A, value: \"2\"}\n", []string{
			"web/a.yaml:15 (document 1): apps Deployment web/d: spec.template.spec.containers[0].env[2] has the key of an item before it (name A, line 13), which the API server refuses; remove one of them",
		}},
		"a port twice, once with the default protocol": {deployment + "        ports:\n        - {containerPort: 80}\n        - {containerPort: 80, protocol: UDP}\n        - {containerPort: 80, protocol: TCP}\n", []string{
			"web/a.yaml:15 (document 1): apps Deployment web/d: spec.template.spec.containers[0].ports[2] has the key of an item before it (containerPort 80, protocol TCP, line 13), which the API server refuses; remove one of them",
		}},
		"a finalizer twice": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: web, finalizers: [x/y, x/y]}\n", []string{
			`web/a.yaml:3 (document 1): ConfigMap web/a: metadata.finalizers[1] has the key of an item before it ("x/y", line 3), which the API server refuses; remove one of them`,
		}},
		"a kind with a blank":                 {"apiVersion: v1\nkind: Config Map\nmetadata: {name: a}\n", []string{`web/a.yaml:2 (document 1): unknown kind "Config Map" in v1; did you mean ConfigMap?`}},
		"a kind in lower case":                {"apiVersion: apps/v1\nkind: deployment\nmetadata: {name: a}\n", []string{`web/a.yaml:2 (document 1): unknown kind "deployment" in apps/v1; did you mean Deployment?`}},
		"a kind with a wrong letter":          {"apiVersion: v1\nkind: Servise\nmetadata: {name: a}\n", []string{`web/a.yaml:2 (document 1): unknown kind "Servise" in v1; did you mean Service?`}},
		"a kind of another group":             {"apiVersion: v1\nkind: Deployment\nmetadata: {name: a}\n", []string{`web/a.yaml:2 (document 1): Deployment isn't in v1; did you mean apiVersion: apps/v1?`}},
		"a kind that none can have":           {"apiVersion: example.com/v1\nkind: My Kind\nmetadata: {name: a}\n", []string{`web/a.yaml:2 (document 1): kind "My Kind" is invalid: must be letters, digits and '-'`}},
		"a kind that is a number":             {"apiVersion: v1\nkind: 1\nmetadata: {name: a}\n", []string{`web/a.yaml:2 (document 1): kind is a number, must be a string; quote it`}},
		"a name that is a number":             {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 1}\n", []string{`web/a.yaml:3 (document 1): metadata.name is a number, must be a string; quote it`}},
		"duplicate keys":                      {cm("a") + "data: {a: \"1\"}\ndata:\n  b: \"2\"\n  b: \"3\"\n", []string{`web/a.yaml:7 (document 1): duplicate key "b" in a mapping, also on line 6; remove one of them, since only the last value is used`, `web/a.yaml:5 (document 1): duplicate key "data" in a mapping, also on line 4; remove one of them, since only the last value is used`}},
		"an item of a list":                   {"apiVersion: v1\nkind: ConfigMapList\nitems:\n- metadata:\n    name: a\n    namespace: web\n  data:\n    a: 1\n", []string{"web/a.yaml:8 (document 1): ConfigMap web/a: data.a is a number, must be a string; quote it"}},
		"no namespace":                        {"apiVersion: v1\nkind: Namespace\nmetadata: {name: web}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", []string{"web/a.yaml:7 (document 2): ConfigMap a has no namespace, but its kind is namespaced; set metadata.namespace, or the component's namespace in release.yaml"}},
		"no namespace on a custom resource":   {crd("Namespaced") + "---\napiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\n", []string{"web/a.yaml:8 (document 2): example.com Widget a has no namespace, but its kind is namespaced; set metadata.namespace, or the component's namespace in release.yaml"}},
		"several problems in several objects": {"apiVersion: v1\nkind: Pods\nmetadata: {name: a}\n---\napiVersion: v1\nkind: secret\nmetadata: {name: a}\n", []string{`web/a.yaml:2 (document 1): unknown kind "Pods" in v1; did you mean Pod?`, `web/a.yaml:6 (document 2): unknown kind "secret" in v1; did you mean Secret?`}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, problemsOf(t, component(map[string]string{"a.yaml": tc.content}))); diff != "" {
				t.Errorf("plain (-want +got):\n%s", diff)
			}
			// The same through a kustomization, which would change or hide some.
			nested := component(map[string]string{"kustomization.yaml": "resources: [sub]\n", "sub/kustomization.yaml": "resources: [a.yaml]\n", "sub/a.yaml": tc.content})
			want := strings.Split(strings.ReplaceAll(strings.Join(tc.want, "\n"), "web/a.yaml", "web/sub/a.yaml"), "\n")
			if diff := cmp.Diff(want, problemsOf(t, nested)); diff != "" {
				t.Errorf("kustomization (-want +got):\n%s", diff)
			}
		})
	}
}

func crd(scope string) string {
	return `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec: {group: example.com, scope: ` + scope + `, names: {kind: Widget, plural: widgets}, versions: []}
`
}

// Real manifests have these, and API servers accept them.
func TestUnusualButCorrectTypesAreAccepted(t *testing.T) {
	r, err := buildFiles(t, component(map[string]string{"a.yaml": `apiVersion: v1
kind: Namespace
metadata: {creationTimestamp: null, name: web}
spec: {}
status: {}
--- # a comment behind
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: web, annotations: {when: "2024-01-01"}}
data: {empty: , script: "a\tb"}
binaryData: {x: eA==}
---
` + strings.Replace(strings.Replace(deployment, "image: x", "image: x\n        resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 0.1, memory: 1e3}}\n        livenessProbe: {httpGet: {path: /, port: web}}\n        ports: [{containerPort: 53, protocol: UDP}, {containerPort: 53, protocol: TCP}, {containerPort: 80, name: a}]", 1), "spec:\n  sel", "spec:\n  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 25%}}\n  sel", 1) + `      volumes: [{name: v, configMap: {name: a, defaultMode: 0644}}]
---
apiVersion: v1
kind: Service
metadata: {name: s, namespace: web}
spec: {ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, targetPort: dns}], selector: }
---
apiVersion: example.com/v1
kind: NotInThisRelease
metadata: {name: cluster-scoped-or-not}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: h, namespace: web}
spec: {maxReplicas: 3, scaleTargetRef: {kind: Deployment, name: d}, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: p, namespace: web}
spec: {minAvailable: 50%}
`}))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Warnings()) > 0 || r.rendered[0].data == nil {
		t.Errorf("warnings %q; the file must be packed unchanged", r.Warnings())
	}
}

func TestNamespacesAreAddedAndRemovedAsKindsRequire(t *testing.T) {
	files := component(map[string]string{"a.yaml": `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: reader
  namespace: web
---
` + crd("Cluster") + `---
apiVersion: example.com/v1
kind: Widget
metadata: {name: w, namespace: web}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: mine}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other, namespace: kept}
---
apiVersion: example.com/v1
kind: Unknown
metadata: {name: u}
`})
	files[SourceFile] = strings.Replace(head, "runLevel: 30", "runLevel: 30, namespace: web", 1)
	r, err := buildFiles(t, files)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"rbac.authorization.k8s.io ClusterRole reader", "apiextensions.k8s.io CustomResourceDefinition widgets.example.com",
		"example.com Widget w", "ConfigMap web/mine", "ConfigMap kept/other", "example.com Unknown u",
	}
	if diff := cmp.Diff(want, objectsOf(t, r)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	wantWarnings := []string{
		"web/a.yaml:5 (document 1): rbac.authorization.k8s.io ClusterRole web/reader: namespace web is removed, since the kind is cluster-scoped",
		"web/a.yaml:14 (document 3): example.com Widget web/w: namespace web is removed, since the kind is cluster-scoped",
		"web/a.yaml:26 (document 6): example.com Unknown u: the component's namespace isn't added, since the release has no CRD that shows whether the kind is namespaced; set metadata.namespace if it is",
	}
	if diff := cmp.Diff(wantWarnings, r.Warnings()); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	// Positions in the release's files become those in the source.
	name := r.Files()[0]
	for in, want := range map[string]string{
		name + ":9 (document 3): x":  "web/a.yaml:12 (document 3): x",
		"also at " + name + ":1: x":  "also at web/a.yaml: x",
		"release-manifests/other: x": "release-manifests/other: x",
	} {
		if got := r.InSource(in); got != want {
			t.Errorf("InSource(%q) is %q, want %q", in, got, want)
		}
	}
	files[SourceFile] = strings.Replace(head, "runLevel: 30", "runLevel: 30, namespace: Web_", 1)
	if got := problemsOf(t, files)[0]; !strings.Contains(got, `component web has namespace "Web_"`) {
		t.Errorf("error is %q", got)
	}
}

func TestProblemsOfKustomizationsHaveFileLineAndFix(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
	}{
		"an unquoted tag": {
			map[string]string{"kustomization.yaml": "resources: [a.yaml]\nimages:\n- name: x\n  newTag: 1.10\n"},
			"web/kustomization.yaml:4 (document 1): images[0].newTag is a number, must be a string; quote it",
		},
		"a digest in letters of a number": {
			map[string]string{"kustomization.yaml": "resources: [a.yaml]\nimages: [{name: x, newTag: 706798e8}]\n"},
			"web/kustomization.yaml:2 (document 1): images[0].newTag is a number, must be a string; quote it",
		},
		"an unknown field": {
			map[string]string{"kustomization.yaml": "resources: [a.yaml]\nname_prefix: x\n"},
			"web/kustomization.yaml:2 (document 1): name_prefix is an unknown field; did you mean namePrefix?",
		},
		"a field in another case": {
			map[string]string{"kustomization.yaml": "Resources: ['https://example.com/x.yaml']\n"},
			"web/kustomization.yaml:1 (document 1): Resources is an unknown field; did you mean resources?",
		},
		"a duplicate key": {
			map[string]string{"kustomization.yaml": "resources: [a.yaml]\nnamePrefix: x\nresources: [a.yaml]\n"},
			`web/kustomization.yaml:3 (document 1): duplicate key "resources" in a mapping, also on line 1; remove one of them, since only the last value is used`,
		},
		"a cycle": {
			map[string]string{"kustomization.yaml": "resources: [../a]\n", "../a/kustomization.yaml": "resources:\n- ../b\n", "../b/kustomization.yaml": "namePrefix: x\nresources:\n- ../a\n"},
			"b/kustomization.yaml:3 (document 1): resources: cycle: a → b → a",
		},
		"itself": {
			map[string]string{"kustomization.yaml": "resources: [.]\n"},
			"web/kustomization.yaml:1 (document 1): resources: cycle: web → web",
		},
		"the directory above": {
			map[string]string{"kustomization.yaml": "resources: [sub]\n", "sub/kustomization.yaml": "resources: [../..]\n"},
			`web/sub/kustomization.yaml:1 (document 1): resources: "../.." contains the kustomization web itself, which kustomize refuses; move what both need to a directory beside them`,
		},
		"a file above": {
			map[string]string{"kustomization.yaml": "resources: [a.yaml, ../b.yaml]\n", "../b.yaml": cm("b")},
			`web/kustomization.yaml:1 (document 1): resources: "../b.yaml" is outside of web, and kustomize reads only files below a kustomization; move the file, or add a kustomization beside it and refer to its directory`,
		},
		"a missing file": {
			map[string]string{"kustomization.yaml": "resources:\n- a.yaml\n- c.yaml\n"},
			`web/kustomization.yaml:3 (document 1): resources: "c.yaml" isn't a file or directory in the source; nothing is fetched during a build`,
		},
		"a directory without a kustomization": {
			map[string]string{"kustomization.yaml": "resources: [sub]\n", "sub/b.yaml": cm("b")},
			"web/sub has no kustomization; add one, or refer to its files",
		},
		"a duplicate key in a patch": {
			map[string]string{"kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap}}]\n", "p.yaml": "- op: add\n  path: /data\n  op: replace\n"},
			`web/p.yaml:3 (document 1): duplicate key "op" in a mapping, also on line 1; remove one of them, since only the last value is used`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			files := component(map[string]string{"a.yaml": cm("a")})
			for name, content := range tc.files {
				name = strings.Replace("web/"+name, "web/../", "", 1)
				files[name] = content
			}
			if diff := cmp.Diff([]string{tc.want}, problemsOf(t, files)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDeprecatedFieldsOfKustomizationsHaveFileAndLine(t *testing.T) {
	files := component(map[string]string{
		"kustomization.yaml":     "resources: [sub]\ncommonLabels: {a: b}\npatchesStrategicMerge: [p.yaml]\n",
		"p.yaml":                 cm("a") + "data: {k: v}\n",
		"sub/kustomization.yaml": "bases: [../../other]\n",
	})
	files["other/kustomization.yaml"] = "resources: [a.yaml]\n"
	files["other/a.yaml"] = cm("a")
	r, err := buildFiles(t, files)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"web/kustomization.yaml:2 (document 1): kustomization field commonLabels is deprecated; use labels",
		"web/kustomization.yaml:3 (document 1): kustomization field patchesStrategicMerge is deprecated; use patches",
		"web/sub/kustomization.yaml:1 (document 1): kustomization field bases is deprecated; use resources",
	}
	if diff := cmp.Diff(want, r.Warnings()); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}
