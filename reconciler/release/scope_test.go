// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/apply"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// A first install has no dry run.
func TestAFirstInstallWithAnObjectThatCannotExistRecordsNothing(t *testing.T) {
	engine, cache := newEngine(t, "impossible")
	var release payload.Payload
	for _, namespace := range []string{"default", ""} {
		metadata := map[string]any{"name": "settings"}
		if namespace != "" {
			metadata["namespace"] = namespace
		}
		m, err := payload.NewManifest(&unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}})
		must(t, err)
		m.File, m.Line = "release-manifests/0000_10_web_0000-a.yaml", 7
		release.Manifests = append(release.Manifests, m)
	}
	b := builderOf(t, engine, cache)
	var refused *worker.UpdateError
	if err := b.Begin(t.Context(), &release); !errors.As(err, &refused) || refused.Code != apply.ReasonResourceInvalid || refused.Retry ||
		!strings.Contains(err.Error(), "ConfigMap settings: ConfigMap is namespaced, but has no namespace; set metadata.namespace (release-manifests/0000_10_web_0000-a.yaml:7)") {
		t.Errorf("error is %v", err)
	}
	if _, total := engine.Prunable(); total != 0 {
		t.Errorf("%d objects are in the inventory", total)
	}
	b.setPolicy(buildPolicy{unmanaged: []worker.Override{{ID: release.Manifests[1].ID}}})
	if err := b.Begin(t.Context(), &release); err != nil {
		t.Errorf("an unmanaged object: %v", err)
	}
}
