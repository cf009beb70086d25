// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// fieldManager is the field manager of cordons.
const fieldManager = "lockstep-rollout"

// ErrCordonedExternally means that another owner cordoned the node.
var ErrCordonedExternally = errors.New("the node is cordoned externally")

// ErrGone means that the Node was deleted or recreated.
var ErrGone = errors.New("the node is gone")

// ErrChanged means that the Node changed since it was read: retry.
var ErrChanged = errors.New("the node changed since it was read")

// Nodes is the client for Nodes that a Cordoner needs. Reads must be served by
// the API server, not by a cache.
type Nodes interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Cordoner cordons and uncordons nodes. It is safe for concurrent use.
type Cordoner struct{ nodes Nodes }

// NewCordoner returns a Cordoner over a client for Nodes.
func NewCordoner(n Nodes) *Cordoner { return &Cordoner{nodes: n} }

// Cordon cordons the node with that name and UID and records owner. It is
// idempotent. A node that is cordoned by another owner isn't changed; the error
// is ErrCordonedExternally.
func (c *Cordoner) Cordon(ctx context.Context, name, uid, owner string) error {
	n, err := c.get(ctx, name, uid)
	if err != nil {
		return fmt.Errorf("cordon %s: %w", name, err)
	}
	switch {
	case n.Spec.Unschedulable && n.Annotations[v1alpha1.AnnotationCordonedBy] == owner:
		return nil
	case n.Spec.Unschedulable:
		return fmt.Errorf("cordon %s for %s: %w", name, owner, ErrCordonedExternally)
	}
	ops := append(preconditions(n), ensureAnnotations(n)...)
	ops = append(
		ops,
		op{"add", annotationPath, owner},
		op{"add", "/spec/unschedulable", true},
	)
	if err := c.patch(ctx, name, ops); err != nil {
		return fmt.Errorf("cordon %s for %s: %w", name, owner, err)
	}
	return nil
}

// Uncordon uncordons the node and removes the annotation if owner owns the
// cordon. A node with another owner, without one or with another UID isn't
// changed; that isn't an error.
func (c *Cordoner) Uncordon(ctx context.Context, name, uid, owner string) error {
	n, err := c.get(ctx, name, uid)
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("uncordon %s: %w", name, err)
	}
	if n.Annotations[v1alpha1.AnnotationCordonedBy] != owner {
		return nil
	}
	ops := append(preconditions(n), op{"test", annotationPath, owner}, op{"remove", annotationPath, nil})
	if n.Spec.Unschedulable {
		ops = append(ops, op{"remove", "/spec/unschedulable", nil})
	}
	if err := c.patch(ctx, name, ops); err != nil {
		return fmt.Errorf("uncordon %s for %s: %w", name, owner, err)
	}
	return nil
}

func (c *Cordoner) get(ctx context.Context, name, uid string) (*corev1.Node, error) {
	n, err := c.nodes.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, ErrGone
	case err != nil:
		return nil, err
	case string(n.UID) != uid:
		return nil, fmt.Errorf("%w: UID is %s, was %s", ErrGone, n.UID, uid)
	}
	return n, nil
}

func (c *Cordoner) patch(ctx context.Context, name string, ops []op) error {
	body, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	_, err = c.nodes.Patch(ctx, name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	// A failed test of a JSON patch is 422 Invalid; a conflict in the store 409.
	if apierrors.IsInvalid(err) || apierrors.IsConflict(err) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}

// op is one operation of a JSON patch.
type op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// annotationPath is the JSON pointer of the cordoned-by annotation; ~1 escapes
// a slash.
var annotationPath = "/metadata/annotations/" + strings.ReplaceAll(v1alpha1.AnnotationCordonedBy, "/", "~1") //nolint:gochecknoglobals // a constant

// preconditions make a patch fail if the Node changed since it was read.
func preconditions(n *corev1.Node) []op {
	return []op{
		{"test", "/metadata/uid", string(n.UID)},
		{"test", "/metadata/resourceVersion", n.ResourceVersion},
	}
}

func ensureAnnotations(n *corev1.Node) []op {
	if n.Annotations != nil {
		return nil
	}
	return []op{{"add", "/metadata/annotations", map[string]string{}}}
}
