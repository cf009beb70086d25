// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// Limits of the checks of a pool.
const (
	// MaxChecks is the maximum number of checks per pool.
	MaxChecks = 32
	// maxExpression is the maximum length of an expression, in bytes.
	maxExpression = 2048
	// costLimit bounds one evaluation, in cel-go's units (about 1 per
	// comparison or iterated element).
	costLimit = 100_000
)

// CheckError is an invalid check of a NodeOS.
type CheckError struct {
	Name string
	Err  error
}

// Error implements error.
func (e *CheckError) Error() string { return fmt.Sprintf("spec.gates.checks[%s]: %v", e.Name, e.Err) }

// Unwrap returns the cause.
func (e *CheckError) Unwrap() error { return e.Err }

// Reason is the condition reason.
func (e *CheckError) Reason() string { return "InvalidSpec" }

// Checks are the compiled checks of a pool; a nil *Checks has none. It is safe
// for concurrent use.
type Checks struct{ programs []program }

type program struct {
	name, source string
	program      cel.Program
}

// Compile compiles the checks of a pool: CEL expressions of type bool with the
// variable node, a Node in its JSON form. Invalid checks are a *CheckError.
func Compile(checks []v1alpha1.GateCheck) (*Checks, error) {
	if len(checks) == 0 {
		return nil, nil //nolint:nilnil // a nil *Checks has no checks, as documented
	}
	if len(checks) > MaxChecks {
		return nil, &CheckError{Name: "*", Err: fmt.Errorf("%d checks, at most %d", len(checks), MaxChecks)}
	}
	env, err := cel.NewEnv(cel.Variable("node", cel.DynType), ext.Strings(), cel.OptionalTypes())
	if err != nil {
		return nil, fmt.Errorf("create the CEL environment: %w", err)
	}
	out := &Checks{}
	for _, c := range checks {
		p, err := compile(env, c.CEL)
		if err != nil {
			return nil, &CheckError{Name: c.Name, Err: err}
		}
		out.programs = append(out.programs, program{name: c.Name, source: c.CEL, program: p})
	}
	return out, nil
}

func compile(env *cel.Env, source string) (cel.Program, error) {
	if len(source) > maxExpression {
		return nil, fmt.Errorf("%d bytes, at most %d", len(source), maxExpression)
	}
	ast, issues := env.Compile(source)
	if err := issues.Err(); err != nil {
		return nil, err
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("result type is %s, want bool", t)
	}
	return env.Program(ast, cel.CostLimit(costLimit))
}

// evaluate runs the checks on the node; a check that returns an error fails.
func (c *Checks) evaluate(node *corev1.Node) Verdict {
	if c == nil {
		return Verdict{OK: true}
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		return failed(GateNode, "convert the Node: %v", err)
	}
	for _, p := range c.programs {
		ok, err := p.eval(object)
		if err != nil {
			return failed(p.name, "%v", err)
		}
		if !ok {
			return failed(p.name, "%s is false", p.source)
		}
	}
	return Verdict{OK: true}
}

func (p program) eval(object map[string]any) (bool, error) {
	value, _, err := p.program.Eval(map[string]any{"node": object})
	if err != nil {
		return false, err
	}
	ok, isBool := value.Value().(bool)
	if !isBool {
		return false, errors.New("result is not a bool")
	}
	return ok, nil
}
