// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// Limits of a drain.
const (
	// workers is how many pods one round evicts at a time.
	workers = 8
	// podPage is how many pods a list request returns.
	podPage = 500
	// maxPods is how many pods of one node are looked at.
	maxPods = 5000
	// backoffBase and backoffLimit space the tries on one pod.
	backoffBase  = 2 * time.Second
	backoffLimit = 30 * time.Second
	// maxBackoffs bounds the pods whose backoff is remembered.
	maxBackoffs = 20000
	// maxNamed is how many blocking pods a text names.
	maxNamed = 3
)

// Config makes an Evictor.
type Config struct {
	// Client lists pods and posts evictions.
	Client kubernetes.Interface
	// Jitter returns a number in [0, 1); nil: none.
	Jitter func() float64
}

// Evictor has the pods of nodes leave. It's safe for concurrent use; all it
// remembers is when a pod may be tried again.
type Evictor struct {
	client kubernetes.Interface
	jitter func() float64

	mu       sync.Mutex
	backoffs map[string]backoff // by pod UID
}

// try is what's remembered of a pod that didn't go.
type backoff struct {
	count int
	next  time.Time
	why   string
}

// NewEvictor returns an Evictor.
func NewEvictor(c Config) *Evictor {
	e := &Evictor{client: c.Client, jitter: c.Jitter, backoffs: map[string]backoff{}}
	if e.jitter == nil {
		e.jitter = func() float64 { return 0 }
	}
	return e
}

// Blocker is a pod that hasn't gone, and why.
type Blocker struct {
	Namespace, Name string
	// Budget is the PodDisruptionBudget that forbids the eviction; empty: none.
	Budget string
	Reason string
}

// String names the pod and what keeps it.
func (b Blocker) String() string {
	if b.Budget != "" {
		return sanitize.Line(fmt.Sprintf("PodDisruptionBudget %s/%s keeps pod %s/%s: %s", b.Namespace, b.Budget, b.Namespace, b.Name, b.Reason))
	}
	return sanitize.Line(fmt.Sprintf("pod %s/%s: %s", b.Namespace, b.Name, b.Reason))
}

// Report is what a look at a node, or a round of evictions, found.
type Report struct {
	// Remaining pods must still go.
	Remaining int
	// Evicted were asked to go in this round, Deleted were deleted by force.
	Evicted, Deleted int
	// Blockers keep the drain from its end, those with a budget first.
	Blockers []Blocker
}

// Blocking says in a line what keeps the drain; empty: nothing but time.
func (r Report) Blocking() string {
	if len(r.Blockers) == 0 {
		return ""
	}
	parts := make([]string, 0, maxNamed)
	for _, b := range r.Blockers[:min(len(r.Blockers), maxNamed)] {
		parts = append(parts, b.String())
	}
	if more := len(r.Blockers) - maxNamed; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

// Request is one look or round.
type Request struct {
	Node        string
	KubeletDead bool
	Policy      Policy
	// Delete removes pods whatever their budgets say: the drain's deadline is
	// over and its policy is to force it.
	Delete bool
}

// Inspect says what is left on the node, and evicts nothing.
func (e *Evictor) Inspect(ctx context.Context, r Request, now time.Time) (Report, error) {
	report, _, err := e.inspect(ctx, r, now)
	return report, err
}

// Round asks every pod that must go, and whose backoff is over, to go once. It
// doesn't wait for them: call it again until Remaining is zero.
func (e *Evictor) Round(ctx context.Context, r Request, now time.Time) (Report, error) {
	report, due, err := e.inspect(ctx, r, now)
	if err != nil || len(due) == 0 {
		return report, err
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		work = make(chan *corev1.Pod)
	)
	for range min(workers, len(due)) {
		wg.Go(func() {
			for pod := range work {
				blocker, err := e.evictPod(ctx, pod, r, now)
				mu.Lock()
				report.add(blocker, err, r.Delete)
				mu.Unlock()
			}
		})
	}
feed:
	for _, pod := range due {
		select {
		case work <- pod:
		case <-ctx.Done():
			break feed
		}
	}
	close(work)
	wg.Wait()
	report.sort()
	return report, ctx.Err()
}

// add counts the outcome of one pod.
func (r *Report) add(b *Blocker, err error, deleted bool) {
	switch {
	case b != nil:
		r.Blockers = append(r.Blockers, *b)
	case err == nil && deleted:
		r.Deleted++
	case err == nil:
		r.Evicted++
	}
}

func (r *Report) sort() {
	slices.SortFunc(r.Blockers, func(a, b Blocker) int {
		return cmp.Or(
			cmp.Compare(boolInt(a.Budget == ""), boolInt(b.Budget == "")),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// look lists the node's pods and sorts out which are due.
func (e *Evictor) inspect(ctx context.Context, r Request, now time.Time) (Report, []*corev1.Pod, error) {
	pods, err := e.list(ctx, r.Node)
	if err != nil {
		return Report{}, nil, err
	}
	policy := r.Policy
	policy.Force = policy.Force || r.Delete
	var (
		report Report
		due    []*corev1.Pod
	)
	for i := range pods {
		pod := &pods[i]
		verdict, why := Classify(pod, Node{KubeletDead: r.KubeletDead}, policy, now)
		switch verdict {
		case Ignore:
			e.clearBackoff(string(pod.UID))
			continue
		case Block:
			report.Blockers = append(report.Blockers, Blocker{Namespace: pod.Namespace, Name: pod.Name, Reason: why})
		case Terminating:
			e.clearBackoff(string(pod.UID))
		case Evict:
			if t, wait := e.inBackoff(string(pod.UID), now); wait && !r.Delete {
				report.Blockers = append(report.Blockers, blockerOf(pod, t.why))
			} else {
				due = append(due, pod)
			}
		}
		report.Remaining++
	}
	report.sort()
	return report, due, nil
}

func (e *Evictor) list(ctx context.Context, node string) ([]corev1.Pod, error) {
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), Limit: podPage}
	var out []corev1.Pod
	for {
		page, err := e.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("drain %s: list its pods: %w", node, err)
		}
		if out = append(out, page.Items...); len(out) > maxPods {
			return nil, fmt.Errorf("drain %s: more than %d pods are on it", node, maxPods)
		}
		if page.Continue == "" {
			return out, nil
		}
		opts.Continue = page.Continue
	}
}

// one asks one pod to go. A nil blocker and a nil error mean that it will.
func (e *Evictor) evictPod(ctx context.Context, pod *corev1.Pod, r Request, now time.Time) (*Blocker, error) {
	uid := string(pod.UID)
	opts := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	if g := r.Policy.GracePeriodSeconds; g >= 0 {
		opts.GracePeriodSeconds = &g
	}
	var err error
	if r.Delete {
		err = e.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, opts)
	} else {
		err = e.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, DeleteOptions: &opts,
		})
	}
	switch {
	case err == nil:
		e.clearBackoff(uid)
		return nil, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Gone, or another pod has the name: nothing of this one is left.
		e.clearBackoff(uid)
		return nil, nil
	}
	why, after := explain(err)
	e.backOff(uid, why, after, now)
	b := blockerOf(pod, why)
	return &b, err
}

func blockerOf(pod *corev1.Pod, why string) Blocker {
	b := Blocker{Namespace: pod.Namespace, Name: pod.Name, Reason: orDefault(why, "not asked yet")}
	if rest, ok := strings.CutPrefix(why, budgetMark); ok {
		b.Budget, b.Reason, _ = strings.Cut(rest, ": ")
	}
	return b
}

// budgetMark starts the explanation of a refusal by a budget; the budget's
// name and a colon follow.
const budgetMark = "budget "

// explain says why an eviction was refused, and how long the API server wants
// it to be left.
func explain(err error) (why string, after time.Duration) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err.Error(), 0
	}
	s := status.Status()
	if s.Details != nil {
		after = time.Duration(s.Details.RetryAfterSeconds) * time.Second
		for _, c := range s.Details.Causes {
			if c.Type == policyv1.DisruptionBudgetCause {
				return budgetMark + budgetName(c.Message) + ": " + c.Message, after
			}
		}
	}
	switch {
	case apierrors.IsTooManyRequests(err):
		return "the API server is busy: " + s.Message, after
	case apierrors.IsInternalError(err) && strings.Contains(s.Message, "more than one PodDisruptionBudget"):
		return "more than one PodDisruptionBudget selects it, which no eviction can satisfy; leave one", backoffLimit
	default:
		return s.Message, after
	}
}

// budgetName reads the budget's name out of the API server's message, "The
// disruption budget NAME needs …"; it's in no field of its own.
func budgetName(message string) string {
	rest, ok := strings.CutPrefix(message, "The disruption budget ")
	if !ok {
		return "(unnamed)"
	}
	name, _, _ := strings.Cut(rest, " ")
	return name
}

func (e *Evictor) inBackoff(uid string, now time.Time) (backoff, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, ok := e.backoffs[uid]
	return t, ok && t.next.After(now)
}

func (e *Evictor) clearBackoff(uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.backoffs, uid)
}

// postpone sets when a pod is tried again: later each time, with jitter, and
// no earlier than the API server asked for.
func (e *Evictor) backOff(uid, why string, after time.Duration, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.backoffs) >= maxBackoffs {
		clear(e.backoffs)
	}
	t := e.backoffs[uid]
	wait := min(backoffBase<<min(t.count, 8), backoffLimit)
	wait += time.Duration(float64(wait) * e.jitter() / 2)
	e.backoffs[uid] = backoff{count: t.count + 1, next: now.Add(max(wait, after)), why: why}
}

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
