// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// specs are the results of the last validation of each release's spec, which is
// validated once per generation.
type specs struct {
	mu     sync.Mutex
	byName map[string]validated
}

type validated struct {
	uid        types.UID
	generation int64
	problem    string
}

// invalid returns why the spec is invalid, "" for a valid one.
func (r *Controller) invalid(ctx context.Context, obj *v1alpha1.ClusterRelease) string {
	r.specs.mu.Lock()
	known, ok := r.specs.byName[obj.Name]
	r.specs.mu.Unlock()
	if ok && known.uid == obj.UID && known.generation == obj.Generation {
		return known.problem
	}
	known = validated{uid: obj.UID, generation: obj.Generation}
	if err := r.sources.ValidateSpec(ctx, v1alpha1.KindClusterRelease, obj.Name, obj.Spec); err != nil {
		known.problem = err.Error()
	}
	r.specs.mu.Lock()
	defer r.specs.mu.Unlock()
	if r.specs.byName == nil {
		r.specs.byName = map[string]validated{}
	}
	r.specs.byName[obj.Name] = known
	return known.problem
}

// drop forgets a deleted release.
func (s *specs) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, name)
}

// defaultInterval is the default of spec.interval.
const defaultInterval = 10 * time.Minute

// usable makes an invalid spec safe for a new worker, which needs an interval. Nothing
// is pruned by it. The spec isn't written.
func usable(spec *v1alpha1.ClusterReleaseSpec) {
	off := false
	spec.Prune = &v1alpha1.PrunePolicy{Enabled: &off}
	if spec.Interval.Duration <= 0 {
		spec.Interval.Duration = defaultInterval
	}
}
