// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package taskgraph

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// OrderProblem is a pair of manifests in an order that can't work.
type OrderProblem struct {
	// User can't be applied, or never becomes ready, without Provider. Provider is
	// applied only after User is ready.
	User, Provider *payload.Manifest
	// Message names both objects with their files and lines, and the fix.
	Message string
}

// CheckOrder returns the pairs of manifests whose order can't work in a state, in
// payload order: for example, a Deployment that mounts a Secret of a later run
// level. An update would wait for the Deployment until it times out. serial is
// Order.Serial. exists reports whether the object of a manifest is already in the
// cluster, which solves the problem; nil means that none is. It is called once for
// the provider of each possible problem.
//
// Payloads in CVO mode rely on namespaces and CRDs of the first install, which applies
// them first: without exists, these aren't checked for a serial order.
//
// References that pods can start without, such as optional ones, are no problem.
// Objects that other objects of the payload create aren't known. The time is
// proportional to the size of the manifests.
func CheckOrder(manifests []payload.Manifest, state payload.State, serial bool, exists func(*payload.Manifest) bool) []OrderProblem {
	if state == payload.Reconciling {
		return nil // Nothing is awaited.
	}
	c := &orderCheck{
		builder: &builder{Graph: &Graph{state: state, manifests: manifests}, serial: serial && state != payload.Initializing},
		exists:  exists, known: map[payload.ObjectID]bool{},
	}
	c.places()
	c.checkApply()
	c.checkReadiness()
	c.checkWebhooks()
	slices.SortStableFunc(c.problems, func(a, b found) int { return cmp.Compare(a.user, b.user) })
	out := make([]OrderProblem, len(c.problems))
	for i, p := range c.problems {
		out[i] = p.OrderProblem
	}
	return out
}

type orderCheck struct {
	*builder
	exists func(*payload.Manifest) bool
	// known are the results of exists.
	known    map[payload.ObjectID]bool
	at       []place
	problems []found
}

type found struct {
	OrderProblem
	user int
}

// place is where a manifest is in the order.
type place struct {
	level     int
	component string
	// step counts the Jobs before a manifest in its component, and the manifests in
	// a serial order. A Job is a step of its own.
	step int
}

// places determines the places of all manifests.
func (c *orderCheck) places() {
	levels := c.effectiveLevels()
	steps := map[place]int{}
	c.at = make([]place, len(c.manifests))
	for i := range c.manifests {
		m := &c.manifests[i]
		p := place{level: levels[i], component: m.Component}
		switch {
		case c.state == payload.Initializing:
			p.level = 0
		case c.state == payload.RollingBack && m.RollbackFirst:
			p.level = -1
		}
		if c.serial || isJob(m) {
			steps[p]++
		}
		c.at[i] = place{p.level, p.component, steps[p]}
		if isJob(m) {
			steps[p]++
		}
	}
}

// follows reports whether the provider is applied only after the user is ready.
func (c *orderCheck) follows(provider, user int) bool {
	p, u := c.at[provider], c.at[user]
	return u.level < p.level || u.level == p.level && u.component == p.component && u.step < p.step
}

// report adds a problem if all candidates follow the user and none exists. Before
// the selection of variants, an object has several candidates.
func (c *orderCheck) report(user int, candidates []int, why string) {
	if len(candidates) == 0 || slices.ContainsFunc(candidates, func(p int) bool { return p == user || !c.follows(p, user) }) {
		return
	}
	p := &c.manifests[candidates[0]]
	if c.inCluster(p) {
		return
	}
	u := &c.manifests[user]
	c.problems = append(c.problems, found{OrderProblem{u, p, fmt.Sprintf("%s (%s:%d) %s %s (%s:%d), which is applied later%s",
		u.ID, u.File, u.Line, why, p.ID, p.File, p.Line, c.fix(user, candidates[0]))}, user})
}

// fix returns why the provider is applied later, and what to change.
func (c *orderCheck) fix(user, provider int) string {
	u, p := c.at[user], c.at[provider]
	switch {
	case u.level < 0:
		return ": rollback-first applies the former before all run levels; remove the annotation " + payload.AnnotationRollbackFirst
	case u.level < p.level:
		return fmt.Sprintf(" in run level %d; move the latter to run level %d or lower", p.level, u.level)
	case c.serial:
		return ": CVO mode keeps the order of files; swap them"
	default:
		return " than a Job; move the latter before that Job or to a lower run level"
	}
}

func (c *orderCheck) inCluster(m *payload.Manifest) bool {
	if c.exists == nil {
		return false
	}
	known, ok := c.known[m.ID]
	if !ok {
		known = c.exists(m)
		c.known[m.ID] = known
	}
	return known
}

// checkApply finds objects that the API server rejects without their namespace or
// the API of their kind. In a first install they wait for both.
func (c *orderCheck) checkApply() {
	if c.state == payload.Initializing || c.serial && c.exists == nil {
		return
	}
	crds, services := map[[2]string][]int{}, map[string][]int{}
	for i := range c.manifests {
		m := &c.manifests[i]
		switch {
		case m.IsCRD():
			if group, kind, ok := crdKind(m); ok {
				crds[[2]string{group, kind}] = append(crds[[2]string{group, kind}], i)
			}
		case m.ID.GroupKind() == kinds.APIService && !m.Delete:
			services[registered(m)] = append(services[registered(m)], i)
		}
	}
	for i := range c.manifests {
		m := &c.manifests[i]
		if m.Delete || stageOf(m) == kinds.Foundations {
			continue
		}
		if m.ID.Namespace != "" {
			c.report(i, c.objects()[id("", kinds.Namespace.Kind, "", m.ID.Namespace)], "is in")
		}
		if defined := crds[[2]string{m.ID.Group, m.ID.Kind}]; len(defined) > 0 {
			c.report(i, defined, "is defined by")
		} else if m.ID.Group != "" {
			c.report(i, services[m.GVK.GroupVersion().String()], "is served by")
		}
	}
}

// checkReadiness finds objects that never become ready, and block what they need.
func (c *orderCheck) checkReadiness() {
	for i := range c.manifests {
		m := &c.manifests[i]
		if c.state == payload.Initializing && !isJob(m) {
			continue // It is awaited at the end.
		}
		for _, n := range readinessNeeds(m) {
			if n.id.Kind == kinds.StorageClass.Kind && !c.classBlocks(i, n.id) {
				continue
			}
			c.report(i, c.objects()[n.id], n.why)
		}
	}
}

// classBlocks reports whether a claim waits for its storage class: it isn't awaited
// before the end of its component, and volumes of the payload need no class.
func (c *orderCheck) classBlocks(claim int, class payload.ObjectID) bool {
	for _, p := range c.objects()[class] {
		if c.at[p].level == c.at[claim].level {
			return false
		}
	}
	for i := range c.manifests {
		m := &c.manifests[i]
		if m.ID.GroupKind() == kinds.PersistentVolume && text(mapAt(m.Object.Object, "spec"), "storageClassName") == class.Name {
			return false
		}
	}
	return true
}

// checkWebhooks finds webhooks that reject the pods of their own server.
func (c *orderCheck) checkWebhooks() {
	for i := range c.manifests {
		for _, server := range c.servers(&c.manifests[i]) {
			if rejectsPods(&c.manifests[i]) {
				c.report(i, []int{server}, "rejects all new pods until its server runs:")
			}
		}
	}
}

// rejectsPods reports whether a webhook without a selector fails closed for new pods.
func rejectsPods(m *payload.Manifest) bool {
	return slices.ContainsFunc(mapsAt(m.Object.Object, "webhooks"), func(hook map[string]any) bool {
		if text(hook, "failurePolicy") == "Ignore" || len(mapsAt(hook, "matchConditions")) > 0 ||
			len(mapAt(hook, "namespaceSelector")) > 0 || len(mapAt(hook, "objectSelector")) > 0 {
			return false
		}
		return slices.ContainsFunc(mapsAt(hook, "rules"), func(rule map[string]any) bool {
			return has(rule, "apiGroups", "", "*") && has(rule, "resources", "pods", "*", "*/*", "pods/*") && has(rule, "operations", "CREATE", "*") &&
				text(rule, "scope") != "Cluster"
		})
	})
}

// has reports whether the list at key has one of the values.
func has(content map[string]any, key string, values ...string) bool {
	list, _ := content[key].([]any)
	return slices.ContainsFunc(list, func(item any) bool {
		s, ok := item.(string)
		return ok && slices.Contains(values, s)
	})
}
