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
	// costLimit bounds one evaluation, in CEL's units; Kubernetes allows a
	// validating admission policy ten times that.
	costLimit = 1_000_000
	// maxExpression bounds an expression, in bytes.
	maxExpression = 4096
	// maxPrograms bounds the compiled expressions that are kept.
	maxPrograms = 2048
	// checkEvery is how many steps of a comprehension pass between two looks
	// at the context.
	checkEvery = 1000
)

// rules compiles health expressions, each once.
type rules struct {
	env *cel.Env

	mu       sync.Mutex
	programs map[string]cel.Program
}

// newRules makes the environment: self is the live object, and its metadata,
// spec and status are variables of their own, as in Flux.
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
		return nil, fmt.Errorf("CEL environment: %w", err)
	}
	return &rules{env: env, programs: map[string]cel.Program{}}, nil
}

// Validate reports whether the expression compiles to a condition. It is what
// a load of a payload checks before anything is applied.
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
		return nil, fmt.Errorf("the expression has %d bytes, at most %d are allowed", len(expression), maxExpression)
	}
	ast, issues := r.env.Compile(expression)
	if issues.Err() != nil {
		return nil, fmt.Errorf("the expression doesn't compile: %w", issues.Err())
	}
	if out := ast.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("the expression gives a %s, want a bool", out)
	}
	p, err := r.env.Program(ast, cel.CostLimit(costLimit), cel.InterruptCheckFrequency(checkEvery), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, fmt.Errorf("the expression can't be planned: %w", err)
	}
	if len(r.programs) >= maxPrograms {
		clear(r.programs)
	}
	r.programs[expression] = p
	return p, nil
}

// errNotBool is what an expression of dynamic type may turn out to give.
var errNotBool = errors.New("it doesn't give true or false")

// judge evaluates the manifest's expression. A field that isn't there yet is
// not an error but a reason to wait.
func (r *rules) judge(ctx context.Context, m *payload.Manifest, body *unstructured.Unstructured) Verdict {
	if m.ID.GroupKind() == kinds.Secret {
		return Verdict{Failed: true, Reason: ReasonInvalidRule, Message: "health expressions over Secrets aren't allowed; remove the annotation " + payload.AnnotationHealth}
	}
	p, err := r.program(m.Health)
	if err != nil {
		return Verdict{Failed: true, Reason: ReasonInvalidRule, Message: sanitize.Clip(err.Error(), 1024)}
	}
	if !observed(body) {
		return Verdict{Reason: ReasonNotObserved, Message: "the controller hasn't seen the newest generation yet"}
	}
	holds, err := evaluate(ctx, p, body)
	switch {
	case err != nil:
		return Verdict{Reason: ReasonInProgress, Message: "health expression: " + sanitize.Line(err.Error())}
	case holds:
		return Verdict{Ready: true}
	default:
		return Verdict{Reason: ReasonInProgress, Message: "health expression is false: " + sanitize.Line(m.Health) + ownWords(body)}
	}
}

// ownWords is what the object itself says about why it isn't ready, "" if it
// says nothing.
func ownWords(body *unstructured.Unstructured) string {
	for _, kind := range []string{"Ready", "Available"} {
		if c := condition(body, kind); c.status != "" && c.status != "True" {
			return "; " + c.words()
		}
	}
	return ""
}

func evaluate(ctx context.Context, p cel.Program, body *unstructured.Unstructured) (bool, error) {
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

// part returns a part of the object, an empty one where it's missing, so that
// has(status.x) works from the beginning.
func part(body *unstructured.Unstructured, name string) map[string]any {
	m, _ := body.Object[name].(map[string]any)
	if m == nil {
		return map[string]any{}
	}
	return m
}
