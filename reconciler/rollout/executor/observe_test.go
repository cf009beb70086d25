// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// twoPools is a cluster of one node that two pools select.
type twoPools struct{ client.Reader }

func (twoPools) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch l := list.(type) {
	case *corev1.NodeList:
		l.Items = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1"}}}
	case *v1alpha1.NodeOSList:
		for _, name := range []string{"workers", "gone"} {
			l.Items = append(l.Items, v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"}, Spec: v1alpha1.NodeOSSpec{All: true}})
		}
	}
	return nil
}

func TestNoPoolConflictsWithOneThatLeftGit(t *testing.T) {
	pool := &v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: "workers"}, Spec: v1alpha1.NodeOSSpec{All: true}}
	for removed, want := range map[string]string{"": "gone", "gone": ""} {
		c := Cluster{Cached: twoPools{}, Live: twoPools{}, Now: time.Now, Removed: func(name string) bool { return name == removed }}
		o, err := c.Observe(t.Context(), pool, nil)
		if err != nil || len(o.Members) != 1 || o.Members[0].Conflict != want {
			t.Errorf("removed %q: %+v, %v, want a conflict with %q", removed, o.Members, err, want)
		}
	}
}
