// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

const (
	// costLimit bounds one evaluation, in CEL cost units; Kubernetes allows a
	// ValidatingAdmissionPolicy ten times as much.
	costLimit = 1_000_000
	// maxExpression bounds an expression, in bytes.
	maxExpression = 4096
	// maxPrograms bounds the cache of compiled expressions.
	maxPrograms = 2048
	// checkEvery is the number of comprehension steps between two checks of
	// the context.
	checkEvery = 1000
)

// rules compiles and caches health expressions.
type rules struct {
	env *cel.Env

	mu       sync.Mutex
	programs map[string]cel.Program
}

// newRules creates the CEL environment: self is the live object; metadata, spec
// and status are variables too, as in Flux.
func newRules() (*rules, error) {
	env, err := cel.NewEnv(
		cel.Variable("self", cel.DynType),
		cel.Variable("metadata", cel.DynType),
		cel.Variable("spec", cel.DynType),
		cel.Variable("status", cel.DynType),
		cel.OptionalTypes(),
		ext.Strings(),
		ext.Sets(),
	)
	if err != nil {
		return nil, fmt.Errorf("create CEL environment: %w", err)
	}
	return &rules{env: env, programs: map[string]cel.Program{}}, nil
}

// Validate returns an error unless the expression compiles to a condition. It
// runs when a payload is loaded, before anything is applied.
func Validate(expression string) error {
	r, err := newRules()
	if err != nil {
		return err
	}
	_, err = r.program(expression)
	return err
}

func (r *rules) program(expression string) (cel.Program, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.programs[expression]; p != nil {
		return p, nil
	}
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("expression too long: %d bytes, at most %d allowed", len(expression), maxExpression)
	}
	ast, issues := r.env.Compile(expression)
	if issues.Err() != nil {
		return nil, fmt.Errorf("compile expression: %w", issues.Err())
	}
	if out := ast.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("expression returns %s, want bool", out)
	}
	p, err := r.env.Program(ast, cel.CostLimit(costLimit), cel.InterruptCheckFrequency(checkEvery), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, fmt.Errorf("plan expression: %w", err)
	}
	if len(r.programs) >= maxPrograms {
		clear(r.programs)
	}
	r.programs[expression] = p
	return p, nil
}

// errNotBool is returned when an expression of dynamic type evaluates to
// something other than a bool.
var errNotBool = errors.New("result isn't a bool")

// evaluate evaluates the manifest's expression. A missing field isn't a failure:
// the controller may set it later.
func (r *rules) evaluate(ctx context.Context, m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if m.ID.GroupKind() == kinds.Secret {
		return Verdict{Failed: true, Reason: ReasonInvalidRule, Message: "health expressions aren't allowed for Secrets; remove the annotation " + payload.AnnotationHealth}
	}
	p, err := r.program(m.Health)
	if err != nil {
		return Verdict{Failed: true, Reason: ReasonInvalidRule, Message: "health expression is invalid: " + sanitize.Clip(err.Error(), 1024)}
	}
	if !observed(body) {
		return Verdict{Reason: ReasonNotObserved, Message: "latest generation not observed by the controller yet"}
	}
	holds, err := eval(ctx, p, body)
	switch {
	case err != nil:
		return Verdict{Reason: ReasonInProgress, Message: "health expression can't be evaluated yet: " + sanitize.Line(err.Error())}
	case holds:
		return Verdict{Ready: true}
	default:
		return Verdict{Reason: ReasonInProgress, Message: "health expression is false: " + sanitize.Line(m.Health) + notReadyCondition(body)}
	}
}

// notReadyCondition returns the object's own Ready or Available condition if it
// isn't True, formatted as the end of a message.
func notReadyCondition(body *unstructured.Unstructured) string {
	for _, kind := range []string{"Ready", "Available"} {
		if c := condition(body, kind); c.status != "" && c.status != "True" {
			return "; " + c.String()
		}
	}
	return ""
}

func eval(ctx context.Context, p cel.Program, body *unstructured.Unstructured) (bool, error) {
	out, _, err := p.ContextEval(ctx, map[string]any{
		"self":     body.Object,
		"metadata": part(body, "metadata"),
		"spec":     part(body, "spec"),
		"status":   part(body, "status"),
	})
	if err != nil {
		return false, err
	}
	b, ok := out.(types.Bool)
	if !ok {
		return false, errNotBool
	}
	return bool(b), nil
}

// part returns a top-level field of the object, an empty map if it's missing, so
// that has(status.x) works before the first status.
func part(body *unstructured.Unstructured, name string) map[string]any {
	m, _ := body.Object[name].(map[string]any)
	if m == nil {
		return map[string]any{}
	}
	return m
}
