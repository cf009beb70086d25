// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// ValidateSpec returns why a spec in the cluster violates the schema of this version:
// an earlier version may have accepted it. Its error lists at most maxProblems
// violations.
func (d *Decoder) ValidateSpec(ctx context.Context, kind, name string, spec any) error {
	schema, ok := d.schemas[kind]
	if !ok {
		return fmt.Errorf("kind %s can't be declared", kind)
	}
	raw, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": v1alpha1.Namespace}, "spec": spec,
	})
	if err != nil {
		return fmt.Errorf("encode the spec of %s/%s: %w", kind, name, err)
	}
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		return fmt.Errorf("decode the spec of %s/%s: %w", kind, name, err)
	}
	schema.complete(object)
	var lines []string
	for i, e := range schema.validate(ctx, object) {
		if i == maxProblems {
			lines = append(lines, "and more")
			break
		}
		lines = append(lines, e.Field+": "+e.ErrorBody())
	}
	if len(lines) > 0 {
		return fmt.Errorf("%s/%s: %s", kind, name, strings.Join(lines, "; "))
	}
	return nil
}
