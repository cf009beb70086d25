// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload/precondition"
)

func TestABlockingClusterOperatorKeepsItsReasonAndMessage(t *testing.T) {
	for conditions, want := range map[string][]precondition.Blocker{
		"[{type: Upgradeable, status: 'False', reason: EtcdDegraded, message: \"a member\\nis down\"}]": {{Name: "ClusterOperator/etcd", Reason: "EtcdDegraded", Message: "a member is down"}},
		"[{type: Upgradeable, status: 'False'}]":                                                        {{Name: "ClusterOperator/etcd", Reason: "NotUpgradeable"}},
		"[{type: Upgradeable, status: 'True', reason: AsExpected}]":                                     nil,
		"[{type: Degraded, status: 'False'}]":                                                           nil,
		"[nonsense]":                                                                                    nil,
		"{}":                                                                                            nil,
	} {
		object := map[string]any{}
		must(t, yaml.Unmarshal([]byte("{metadata: {name: etcd}, status: {conditions: "+conditions+"}}"), &object))
		if diff := cmp.Diff(want, notUpgradeable(&unstructured.Unstructured{Object: object})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", conditions, diff)
		}
	}
}

// poolsOnly is a reader of NodeOS objects.
type poolsOnly struct {
	client.Reader
	pools []v1alpha1.NodeOS
}

func (p poolsOnly) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if l, ok := list.(*v1alpha1.NodeOSList); ok {
		l.Items = p.pools
	}
	return nil
}

func TestAHaltedPoolBlocks(t *testing.T) {
	pool := func(name string, halted metav1.ConditionStatus) v1alpha1.NodeOS {
		n := v1alpha1.NodeOS{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionHalted, Status: halted, Reason: "Halted", Message: "2 hosts failed"}}
		return n
	}
	reader := poolsOnly{pools: []v1alpha1.NodeOS{pool("workers", "True"), pool("masters", "False"), pool("edge", "True"), {}}}
	got, err := haltedPools(t.Context(), reader)
	must(t, err)
	want := []precondition.Blocker{
		{Name: "NodeOS/edge", Reason: "Halted", Message: "2 hosts failed"}, {Name: "NodeOS/workers", Reason: "Halted", Message: "2 hosts failed"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blockers (-want +got):\n%s", diff)
	}
}
