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
	// maxPods is the maximum number of pods on one node.
	maxPods = 5000
	// backoffBase and backoffLimit bound the delay between evictions of one pod.
	backoffBase  = 2 * time.Second
	backoffLimit = 30 * time.Second
	// maxBackoffs bounds the pods whose backoff is stored.
	maxBackoffs = 20000
	// maxNamed is how many blocking pods a message names.
	maxNamed = 3
)

// Config configures an Evictor.
type Config struct {
	// Client lists pods and posts evictions.
	Client kubernetes.Interface
	// Jitter returns a number in [0, 1) to lengthen backoffs; nil disables it.
	Jitter func() float64
}

// Evictor evicts the pods of nodes. It is safe for concurrent use. It keeps only
// the backoff of each pod whose eviction failed.
type Evictor struct {
	client kubernetes.Interface
	jitter func() float64

	mu       sync.Mutex
	backoffs map[string]backoff // by pod UID
}

// backoff is the state of a pod whose eviction failed.
type backoff struct {
	count int
	next  time.Time
	cause refusal
}

// NewEvictor returns an Evictor.
func NewEvictor(c Config) *Evictor {
	e := &Evictor{client: c.Client, jitter: c.Jitter, backoffs: map[string]backoff{}}
	if e.jitter == nil {
		e.jitter = func() float64 { return 0 }
	}
	return e
}

// Blocker is a pod that blocks the drain, and why.
type Blocker struct {
	Namespace, Name string
	// Budget is the PodDisruptionBudget that blocks the eviction, if any.
	Budget string
	Reason string
}

// String returns a message that names the pod, its budget and the reason.
func (b Blocker) String() string {
	if b.Budget != "" {
		return sanitize.Line(fmt.Sprintf("PodDisruptionBudget %s/%s blocks pod %s/%s: %s", b.Namespace, b.Budget, b.Namespace, b.Name, b.Reason))
	}
	return sanitize.Line(fmt.Sprintf("pod %s/%s: %s", b.Namespace, b.Name, b.Reason))
}

// Report is the result of Inspect or Round.
type Report struct {
	// Remaining is the number of pods still to be removed.
	Remaining int
	// Evicted and Deleted are the numbers of pods evicted and deleted by this
	// round.
	Evicted, Deleted int
	// Blockers are the blocking pods, those with a budget first.
	Blockers []Blocker
}

// Blocking returns a message that names up to three blocking pods; empty if
// none blocks.
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

// Request is the input of Inspect and Round.
type Request struct {
	Node        string
	KubeletDead bool
	Policy      Policy
	// Delete deletes pods regardless of their budgets, as a forced drain does
	// after its deadline.
	Delete bool
}

// Inspect reports the pods left on the node and evicts none.
func (e *Evictor) Inspect(ctx context.Context, r Request, now time.Time) (Report, error) {
	report, _, err := e.inspect(ctx, r, now)
	return report, err
}

// Round requests the eviction of each remaining pod that isn't in backoff. It
// doesn't wait for the pods: call it again until Remaining is 0.
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

// add adds the result of one pod.
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

// inspect lists the node's pods and returns those that are due for eviction.
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
		verdict, cause := Classify(pod, Node{KubeletDead: r.KubeletDead}, policy, now)
		switch verdict {
		case Ignore:
			e.clearBackoff(string(pod.UID))
			continue
		case Block:
			report.Blockers = append(report.Blockers, Blocker{Namespace: pod.Namespace, Name: pod.Name, Reason: cause})
		case Terminating:
			e.clearBackoff(string(pod.UID))
		case Evict:
			if t, wait := e.inBackoff(string(pod.UID), now); wait && !r.Delete {
				report.Blockers = append(report.Blockers, blockerOf(pod, t.cause))
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
			return nil, fmt.Errorf("drain %s: the node has more than %d pods", node, maxPods)
		}
		if page.Continue == "" {
			return out, nil
		}
		opts.Continue = page.Continue
	}
}

// evictPod evicts or deletes one pod. A nil blocker and a nil error mean that
// the request was accepted or the pod is gone.
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
		// The pod was deleted or recreated.
		e.clearBackoff(uid)
		return nil, nil
	}
	cause := explain(err)
	e.backOff(uid, cause, now)
	b := blockerOf(pod, cause)
	return &b, err
}

func blockerOf(pod *corev1.Pod, r refusal) Blocker {
	return Blocker{Namespace: pod.Namespace, Name: pod.Name, Budget: r.budget, Reason: cmp.Or(r.reason, "eviction failed")}
}

// refusal is why an eviction failed.
type refusal struct {
	// budget is the PodDisruptionBudget that blocks the eviction, if any.
	budget, reason string
	// after is the minimum delay that the API server requests.
	after time.Duration
}

// explain returns why an eviction failed.
func explain(err error) refusal {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return refusal{reason: err.Error()}
	}
	s := status.Status()
	out := refusal{reason: s.Message}
	if s.Details != nil {
		out.after = time.Duration(s.Details.RetryAfterSeconds) * time.Second
		for _, c := range s.Details.Causes {
			if c.Type == policyv1.DisruptionBudgetCause {
				out.budget, out.reason = budgetName(c.Message), c.Message
				return out
			}
		}
	}
	switch {
	case apierrors.IsTooManyRequests(err):
		out.reason = "the API server is busy: " + s.Message
	case apierrors.IsInternalError(err) && strings.Contains(s.Message, "more than one PodDisruptionBudget"):
		out.reason, out.after = "more than one PodDisruptionBudget selects the pod, so it can't be evicted; keep only one", backoffLimit
	}
	return out
}

// budgetName parses the API server's message, "The disruption budget NAME needs
// …": no field contains the name.
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

// backOff delays the next eviction of a pod: exponentially with jitter, and at
// least as long as the API server requests.
func (e *Evictor) backOff(uid string, cause refusal, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.backoffs) >= maxBackoffs {
		clear(e.backoffs)
	}
	t := e.backoffs[uid]
	wait := min(backoffBase<<min(t.count, 8), backoffLimit)
	wait += time.Duration(float64(wait) * e.jitter() / 2)
	e.backoffs[uid] = backoff{count: t.count + 1, next: now.Add(max(wait, cause.after)), cause: cause}
}
