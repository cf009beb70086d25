// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// A first install has no dry run.
func TestAFirstInstallWithObjectsThatCannotExistIsRejected(t *testing.T) {
	engine, _ := newEngine(t, "impossible")
	var release payload.Payload
	for i, name := range []string{"one", "two"} {
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}})
		must(t, err)
		m.File, m.Line = "release-manifests/0000_10_web_0000-a.yaml", 7+i
		release.Manifests = append(release.Manifests, m)
	}
	c := &checks{engine: engine, rejected: func(string) {}}
	overrides := []worker.Override{{ID: release.Manifests[0].ID}}
	violations, err := c.Check(t.Context(), worker.Desired{}, &release, worker.Current{Overrides: overrides})
	if control.ReasonOf(err, "") != apply.ReasonResourceInvalid || control.Retriable(err) || precondition.Blocks(violations) ||
		err.Error() != "ConfigMap two: ConfigMap is namespaced, but has no namespace; set metadata.namespace (release-manifests/0000_10_web_0000-a.yaml:8)" {
		t.Errorf("an unmanaged and an impossible object: %v, %v", violations, err)
	}
	if _, err = c.Check(t.Context(), worker.Desired{}, &release, worker.Current{}); control.ReasonOf(err, "") != apply.ReasonResourceInvalid || control.Retriable(err) ||
		!strings.Contains(err.Error(), "ConfigMap one") || !strings.Contains(err.Error(), "ConfigMap two") {
		t.Errorf("two impossible objects: %v", err)
	}
}
