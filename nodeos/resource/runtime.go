// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/config/backoff"
	"github.com/lockstep-dev/lockstep/nodeos"
)

// Kind is a type of resources in a namespace.
type Kind struct {
	// Namespace is the namespace of the resources.
	Namespace string
	// Type is the type of the resources.
	Type string
}

// Controller derives resources from other resources.
type Controller interface {
	// Name is the controller's name and the owner of its outputs.
	Name() string
	// Inputs are the kinds that it reads.
	Inputs() []Kind
	// Outputs are the kinds that it writes exclusively.
	Outputs() []Kind
	// Run runs until ctx ends. It's restarted after an error.
	Run(ctx context.Context, a *Access) error
}

// Runtime runs controllers on a store; it implements nodeos.V1Alpha2Controller and
// nodeos.V1Alpha2State. Register must not be called after Run.
type Runtime struct {
	store       *Store
	log         *zap.Logger
	controllers []Controller
}

var (
	_ nodeos.V1Alpha2Controller = (*Runtime)(nil)
	_ nodeos.V1Alpha2State      = (*Runtime)(nil)
)

// NewRuntime returns a runtime for a store.
func NewRuntime(store *Store, log *zap.Logger) *Runtime { return &Runtime{store: store, log: log} }

// Register adds a controller. A duplicate name or output is an error.
func (r *Runtime) Register(c Controller) error {
	for _, other := range r.controllers {
		if other.Name() == c.Name() {
			return fmt.Errorf("controller %s is already registered", c.Name())
		}
		for _, out := range c.Outputs() {
			if slices.Contains(other.Outputs(), out) {
				return fmt.Errorf("controllers %s and %s both write %s/%s", other.Name(), c.Name(), out.Namespace, out.Type)
			}
		}
	}
	r.controllers = append(r.controllers, c)
	return nil
}

// Resources implements nodeos.V1Alpha2State.
func (r *Runtime) Resources() nodeos.Resources { return r.store }

// Namespaces implements nodeos.V1Alpha2State.
func (r *Runtime) Namespaces() []string {
	return r.known(func(k Kind) string { return k.Namespace })
}

// Types implements nodeos.V1Alpha2State.
func (r *Runtime) Types() []string { return r.known(func(k Kind) string { return k.Type }) }

// known collects names from the declarations of the controllers and from the
// configuration, which the runtime itself writes.
func (r *Runtime) known(name func(Kind) string) []string {
	out := []string{name(Kind{ConfigNamespace, MachineConfigType})}
	for _, c := range r.controllers {
		for _, k := range slices.Concat(c.Inputs(), c.Outputs()) {
			out = append(out, name(k))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// DependencyGraph implements nodeos.V1Alpha2Controller.
func (r *Runtime) DependencyGraph() (nodeos.DependencyGraph, error) {
	var g nodeos.DependencyGraph
	for _, c := range r.controllers {
		for _, k := range c.Inputs() {
			g.Edges = append(g.Edges, nodeos.DependencyEdge{Controller: c.Name(), Namespace: k.Namespace, Type: k.Type})
		}
		for _, k := range c.Outputs() {
			g.Edges = append(g.Edges, nodeos.DependencyEdge{Controller: c.Name(), Output: true, Namespace: k.Namespace, Type: k.Type})
		}
	}
	slices.SortFunc(g.Edges, func(a, b nodeos.DependencyEdge) int {
		return cmp.Or(cmp.Compare(a.Controller, b.Controller), cmp.Compare(direction(a), direction(b)),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Type, b.Type))
	})
	return g, nil
}

func direction(e nodeos.DependencyEdge) int {
	if e.Output {
		return 1
	}
	return 0
}

// Limits of the delay before a failed controller is restarted.
const (
	firstPause = 500 * time.Millisecond
	maxPause   = time.Minute
)

// Run implements nodeos.V1Alpha2Controller: it runs all controllers until ctx ends or
// the drainer drains, and returns when all have ended.
func (r *Runtime) Run(ctx context.Context, drainer *nodeos.Drainer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub := drainer.Subscribe()
	defer sub.Cancel()
	var wg sync.WaitGroup
	for _, c := range r.controllers {
		wg.Go(func() { r.superviseController(ctx, c) })
	}
	select {
	case <-ctx.Done():
	case <-sub.EventCh():
	}
	cancel()
	wg.Wait()
	return nil
}

// superviseController runs a controller and restarts it after errors.
func (r *Runtime) superviseController(ctx context.Context, c Controller) {
	for failures := 0; ; failures++ {
		err := runRecovered(ctx, c, &Access{store: r.store, controller: c})
		if ctx.Err() != nil {
			return
		}
		pause := backoff.Delay(firstPause, maxPause, failures)
		r.log.Warn("controller failed; restarting", zap.String("controller", c.Name()), zap.Duration("in", pause), zap.Error(err))
		if backoff.Wait(ctx, pause) != nil {
			return
		}
	}
}

// runRecovered runs a controller and returns a panic as an error.
func runRecovered(ctx context.Context, c Controller, a *Access) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return c.Run(ctx, a)
}

// Access is a controller's access to the store, limited to its declared inputs and
// outputs.
type Access struct {
	store      *Store
	controller Controller
}

// errUndeclared means that a controller accesses an undeclared kind.
var errUndeclared = errors.New("not declared")

// Watch is Store.Watch for a declared input.
func (a *Access) Watch(ctx context.Context, k Kind, f func(nodeos.ResourceEvent) error) error {
	if !slices.Contains(a.controller.Inputs(), k) {
		return fmt.Errorf("controller %s: read %s/%s: %w as an input", a.controller.Name(), k.Namespace, k.Type, errUndeclared)
	}
	return a.store.Watch(ctx, k.Namespace, k.Type, f)
}

// Update is the function Update for a declared output.
func (a *Access) Update(ctx context.Context, k Kind, name string, f func(spec any) (any, bool)) error {
	if !slices.Contains(a.controller.Outputs(), k) {
		return fmt.Errorf("controller %s: write %s/%s: %w as an output", a.controller.Name(), k.Namespace, k.Type, errUndeclared)
	}
	key := nodeos.ResourceKey{Namespace: k.Namespace, Type: k.Type, Name: name}
	return Update(ctx, a.store, key, a.controller.Name(), f)
}
