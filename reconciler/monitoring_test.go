// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/runtime/metrics"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/pool"
	"github.com/lockstep-dev/lockstep/reconciler/release"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// description matches the description of a metric.
var description = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// registered returns the labels of every metric that the process serves.
func registered(t *testing.T) map[string][]string {
	t.Helper()
	all := append(apply.NewMetrics().Collectors(), release.NewMetrics().Collectors()...)
	all = append(all, pool.NewMetrics().Collectors()...)
	all = append(all, metrics.NewRecorder().Collectors()...)
	others, ok := ctrlmetrics.Registry.(prometheus.Collector)
	if !ok {
		t.Fatal("the registry of controller-runtime is no collector")
	}
	out := map[string][]string{}
	for _, c := range append(all, others) {
		ch := make(chan *prometheus.Desc, 1000)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			found := description.FindStringSubmatch(d.String())
			if found == nil {
				t.Fatalf("unreadable description %s", d)
			}
			out[found[1]] = strings.FieldsFunc(found[2], func(r rune) bool { return r == ',' || r == ' ' })
		}
	}
	return out
}

type alerts struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

const monitoring = "../config/monitoring"

func readInto(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(monitoring, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// The parts of an expression: its groupings, metrics and matchers.
var (
	by    = regexp.MustCompile(`\b(?:by|on|without) ?\(([a-z, ]*)\)`)
	use   = regexp.MustCompile(`\b([a-z]+(?:_[a-z]+)+)(?:\{([^}]*)\})?`)
	label = regexp.MustCompile(`([a-z]+)(=~|!~|!=|=)"([^"]*)"`)
)

// functions are the names with an underscore that are no metrics.
var functions = []string{"histogram_quantile"}

// problemsOf returns the metrics, labels and values of an expression that don't
// exist.
func problemsOf(expr string, known map[string][]string) []string {
	var problems, labels []string
	used := 0
	for _, found := range use.FindAllStringSubmatch(by.ReplaceAllString(expr, ""), -1) {
		name, selector := found[1], found[2]
		if slices.Contains(functions, name) {
			continue
		}
		used++
		base := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if _, ok := known[base]; !ok {
				base = strings.TrimSuffix(name, suffix)
			}
		}
		have, ok := known[base]
		if !ok {
			problems = append(problems, "unknown metric "+name)
			continue
		}
		labels = append(labels, have...)
		problems = append(problems, problemsOfSelector(base, selector, have)...)
	}
	for _, found := range by.FindAllStringSubmatch(expr, -1) {
		for name := range strings.SplitSeq(found[1], ",") {
			if name = strings.TrimSpace(name); name != "le" && !slices.Contains(labels, name) {
				problems = append(problems, "no metric has the label "+name)
			}
		}
	}
	if used == 0 {
		problems = append(problems, "no metric found in "+expr)
	}
	return problems
}

func problemsOfSelector(metric, selector string, have []string) []string {
	var problems []string
	for _, l := range label.FindAllStringSubmatch(selector, -1) {
		if !slices.Contains(have, l[1]) {
			problems = append(problems, fmt.Sprintf("%s has no label %s, it has %v", metric, l[1], have))
			continue
		}
		for value := range strings.SplitSeq(l[3], "|") {
			if values := valuesOf(metric, l[1]); values != nil && !slices.Contains(values, value) {
				problems = append(problems, fmt.Sprintf("%s of %s is never %q, want one of %v", l[1], metric, value, values))
			}
		}
	}
	return problems
}

// valuesOf returns the values that a label may have; nil where any may be.
func valuesOf(metric, label string) []string {
	switch metric + " " + label {
	case "gotk_reconcile_condition type":
		return []string{
			v1alpha1.ConditionReady, v1alpha1.ConditionStalled, v1alpha1.ConditionReconciling, v1alpha1.ConditionInsecure,
			v1alpha1.ConditionSourceVerified, v1alpha1.ConditionWriteBackReady, v1alpha1.ConditionReleaseAccepted,
			v1alpha1.ConditionReleaseVerified, v1alpha1.ConditionFailing, v1alpha1.ConditionAvailable, v1alpha1.ConditionProgressing,
			v1alpha1.ConditionPaused, v1alpha1.ConditionHalted, v1alpha1.ConditionOSVerified,
		}
	case "gotk_reconcile_condition kind":
		return []string{v1alpha1.KindGitSource, v1alpha1.KindClusterRelease, v1alpha1.KindNodeOS, v1alpha1.KindTrustPolicy}
	case "gotk_reconcile_condition status":
		return []string{"True", "False", "Unknown"}
	case "lockstep_release_apply_requests_total result":
		return []string{"ok", "error"}
	case "leader_election_master_status name":
		return []string{LeaseName}
	case "lockstep_nodeos_hosts state", "lockstep_release_manifests state", "lockstep_release_info role":
		return recordedValues(metric, label)
	}
	return nil
}

// recordedValues records a release and a pool, and returns the values that the
// label then has.
func recordedValues(metric, label string) []string {
	releases, pools := release.NewMetrics(), pool.NewMetrics()
	ref := &v1alpha1.ReleaseRef{Version: "1"}
	obj := &v1alpha1.ClusterRelease{Status: v1alpha1.ClusterReleaseStatus{Desired: ref, Accepted: ref, Applied: ref}}
	releases.Record(obj, &worker.SyncWorkerStatus{})
	pools.Record(&v1alpha1.NodeOS{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(append(releases.Collectors(), pools.Collectors()...)...)
	families, err := registry.Gather()
	if err != nil {
		return nil
	}
	var out []string
	for _, f := range families {
		for _, sample := range f.GetMetric() {
			for _, l := range sample.GetLabel() {
				if f.GetName() == metric && l.GetName() == label {
					out = append(out, l.GetValue())
				}
			}
		}
	}
	return out
}

func TestAlertsAndPanelsUseMetricsThatExist(t *testing.T) {
	known := registered(t)
	var plain alerts
	readInto(t, "rules.yaml", &plain)
	for _, g := range plain.Groups {
		for _, r := range g.Rules {
			for _, problem := range problemsOf(r.Expr, known) {
				t.Errorf("%s: %s", r.Alert, problem)
			}
			if r.For == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" ||
				!slices.Contains([]string{"info", "warning", "critical"}, r.Labels["severity"]) {
				t.Errorf("%s lacks its for, severity, summary or description", r.Alert)
			}
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	raw, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &dashboard); err != nil {
		t.Fatal(err)
	}
	if len(dashboard.Panels) == 0 {
		t.Error("the dashboard has no panels")
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			for _, problem := range problemsOf(target.Expr, known) {
				t.Errorf("panel %s: %s", p.Title, problem)
			}
		}
	}
}

func TestUnknownMetricsLabelsAndValuesAreFound(t *testing.T) {
	known := registered(t)
	for _, expr := range []string{
		`lockstep_release_nothing > 0`,
		`sum by (colour) (lockstep_release_manifests)`,
		`lockstep_nodeos_hosts{state="lost"} > 0`,
		`lockstep_nodeos_hosts{pool="workers"} > 0`,
	} {
		if len(problemsOf(expr, known)) == 0 {
			t.Errorf("%s: no problem found", expr)
		}
	}
}

func TestTheRulesOfThePrometheusOperatorAreThePlainOnes(t *testing.T) {
	var plain alerts
	var wrapped struct {
		Spec alerts `json:"spec"`
	}
	readInto(t, "rules.yaml", &plain)
	readInto(t, "prometheusrule.yaml", &wrapped)
	if diff := cmp.Diff(plain, wrapped.Spec); diff != "" {
		t.Errorf("rules.yaml and prometheusrule.yaml differ (-plain +wrapped):\n%s", diff)
	}
}

func TestEveryAlertHasARuleTest(t *testing.T) {
	var plain alerts
	readInto(t, "rules.yaml", &plain)
	var scripts struct {
		Tests []struct {
			Cases []struct {
				Alert string `json:"alertname"`
				Want  []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	readInto(t, "testdata/alerts.yaml", &scripts)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, s := range scripts.Tests {
		for _, c := range s.Cases {
			fires[c.Alert] = fires[c.Alert] || len(c.Want) > 0
			silent[c.Alert] = silent[c.Alert] || len(c.Want) == 0
		}
	}
	for _, g := range plain.Groups {
		for _, r := range g.Rules {
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("%s: has a test that it fires: %t, that it doesn't fire: %t", r.Alert, fires[r.Alert], silent[r.Alert])
			}
		}
	}
}

func TestPromtoolAcceptsTheRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool not found; it is in Debian's package prometheus")
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "testdata/alerts.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = monitoring
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
