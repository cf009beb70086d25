// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/source"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/reconciler/writeback"
	"github.com/lockstep-dev/lockstep/sources/git"
)

// reports keep a writer for each GitSource that wants status written back, and
// hand it a new report whenever one of the declared objects changed.
type reports struct {
	control.Group
	control.Base
	opts    Options
	cache   cache.Cache
	sources *source.Controller
	secrets typedcorev1.SecretInterface
	log     logr.Logger
	// dirty holds at most one note that something changed.
	dirty chan struct{}
	// results are what attempts to publish came to.
	results chan published

	mu      sync.Mutex
	writers map[string]*reportWriter
}

// reportWriter is the writer of one source, for one declaration of it.
type reportWriter struct {
	spec    v1alpha1.WriteBack
	url     string
	cluster string
	writer  *writeback.Writer
	stop    func()
}

// published is a result with the source that it belongs to.
type published struct {
	source string
	writeback.Result
}

func newReporter(o *Operator) *reports {
	return &reports{
		Base: o.base, opts: o.opts, cache: o.manager.GetCache(), sources: o.sources, secrets: o.kube.CoreV1().Secrets(v1alpha1.Namespace), log: o.opts.Log.WithName("writeback"),
		dirty: make(chan struct{}, 1), results: make(chan published, 16), writers: map[string]*reportWriter{},
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*reports) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (r *reports) Start(ctx context.Context) error {
	if err := r.WaitReady(ctx); err != nil {
		return nil //nolint:nilerr // the process ends
	}
	if err := r.watch(ctx); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.loop(ctx)
	}()
	r.Run(ctx)
	<-done
	return nil
}

// watch marks the reports dirty at each change of one of our objects.
func (r *reports) watch(ctx context.Context) error {
	mark := func() {
		select {
		case r.dirty <- struct{}{}:
		default:
		}
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { mark() },
		UpdateFunc: func(any, any) { mark() },
		DeleteFunc: func(any) { mark() },
	}
	for _, obj := range []client.Object{&v1alpha1.GitSource{}, &v1alpha1.ClusterRelease{}, &v1alpha1.NodeOS{}, &v1alpha1.TrustPolicy{}, &v1alpha1.Host{}} {
		informer, err := r.cache.GetInformer(ctx, obj)
		if err != nil {
			return fmt.Errorf("informer of %T: %w", obj, err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("informer of %T: %w", obj, err)
		}
	}
	mark()
	return nil
}

// settle is how long changes are gathered before a report is made. It begins
// with the first of them: a rollout that changes something all the time is
// reported all the same.
const settle = 300 * time.Millisecond

func (r *reports) loop(ctx context.Context) {
	timer := time.NewTimer(settle)
	defer timer.Stop()
	pending := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.dirty:
			if !pending {
				timer.Reset(settle)
			}
			pending = true
		case <-timer.C:
			pending = false
			control.LogError(r.log, r.report(ctx), "the report can't be made")
		case p := <-r.results:
			control.LogError(r.log, r.told(ctx, p), "the result of the write-back can't be kept")
		}
	}
}

// report reads the declared objects and hands each writer how they stand.
func (r *reports) report(ctx context.Context) error {
	w, err := readStanding(ctx, r.Client)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	var failures []error
	for i := range w.sources {
		source := &w.sources[i]
		if r.sources.NotFromParent(source).Reason != "" {
			seen[source.Name] = true // what is written goes on as it was declared
			continue
		}
		// A suspended source isn't read; what it declared goes on, and is told.
		if source.Spec.WriteBack == nil {
			continue
		}
		record, ok := r.Store.Source(source.Name)
		if !ok && source.Status.AttemptedRevision == nil {
			continue // nothing to tell yet
		}
		seen[source.Name] = true
		writer, err := r.writer(source, record)
		if err != nil {
			failures = append(failures, r.told(ctx, published{source: source.Name, Result: writeback.Result{Err: err, Time: r.Now()}}))
			continue
		}
		if writer != nil {
			writer.Put(w.report(source, r.opts.insecureOptions()))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, writer := range r.writers {
		if !seen[name] {
			writer.stop()
			delete(r.writers, name)
		}
	}
	return errors.Join(failures...)
}

// writer returns the writer of a source, made anew when its declaration changed.
func (r *reports) writer(source *v1alpha1.GitSource, record state.Source) (*writeback.Writer, error) {
	spec := source.Spec.WriteBack
	url := spec.URL
	if url == "" {
		url = source.Spec.URL
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if have := r.writers[source.Name]; have != nil {
		if have.url == url && have.cluster == source.Spec.Cluster && equality.Semantic.DeepEqual(have.spec, *spec) {
			return have.writer, nil
		}
		have.stop()
		delete(r.writers, source.Name)
	}
	publisher, err := r.publisher(source, url, record.Published.Commit)
	if err != nil {
		return nil, err
	}
	name := source.Name
	writer, err := writeback.NewWriter(writeback.Config{
		Publisher: publisher, MinInterval: spec.MinInterval.Duration, Keep: int(spec.Keep), Now: r.Now,
		OnResult: func(res writeback.Result) {
			select {
			case r.results <- published{source: name, Result: res}:
			default: // the next result tells more
			}
		},
	}, record.Published.Key)
	if err != nil {
		return nil, err
	}
	stop, ok := r.Go(func(ctx context.Context) { control.LogError(r.log, writer.Run(ctx), "the writer ended") })
	if !ok {
		return nil, nil
	}
	r.writers[name] = &reportWriter{spec: *spec.DeepCopy(), url: url, cluster: source.Spec.Cluster, writer: writer, stop: stop}
	return writer, nil
}

// publisher makes the pusher of a source's status branch.
func (r *reports) publisher(source *v1alpha1.GitSource, url, last string) (*git.Publisher, error) {
	host, err := control.HostOf(url)
	if err != nil {
		return nil, err
	}
	cfg := git.PublisherConfig{
		URL: url, Cluster: source.Spec.Cluster, Last: last, Timeout: source.Spec.Timeout.Duration,
		AllowInsecure: r.opts.AllowInsecureSources, Now: r.Now,
	}
	spec := source.Spec.WriteBack
	if ref := spec.SecretRef; ref != nil {
		cfg.Credentials = func(ctx context.Context) (git.Credentials, error) {
			data, err := control.BoundSecret(ctx, r.secrets, ref.Name, v1alpha1.UseGitStatus, host)
			if err != nil {
				return git.Credentials{}, err
			}
			return git.CredentialsFromSecret(data), nil
		}
	}
	if ref := spec.SigningKeyRef; ref != nil {
		cfg.SigningKey = func(ctx context.Context) ([]byte, error) {
			data, err := control.BoundSecret(ctx, r.secrets, ref.Name, v1alpha1.UseStatusSigning, "")
			if err != nil {
				return nil, err
			}
			if len(data["identity"]) == 0 {
				return nil, control.NewError(control.ReasonSecretNotFound, true, fmt.Errorf("secret %s has no key identity", ref.Name))
			}
			return data["identity"], nil
		}
	}
	return git.NewPublisher(cfg)
}

// told keeps what an attempt came to: in the store for the next process, and
// in the source's status for people.
func (r *reports) told(ctx context.Context, p published) error {
	if p.Err == nil {
		if err := r.Store.SetPublished(ctx, p.source, state.Published{Key: p.Key, Commit: p.Pushed.Revision.Hash}); err != nil {
			return err
		}
	}
	return r.tellStatus(ctx, p)
}

func (r *reports) tellStatus(ctx context.Context, p published) error {
	var obj v1alpha1.GitSource
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: p.source}, &obj)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	now := metav1.NewTime(r.Now().UTC().Truncate(time.Second))
	var pushed *v1alpha1.StatusCommit
	c := status.Condition{Type: v1alpha1.ConditionWriteBackReady, Status: metav1.ConditionTrue, Reason: "Pushed"}
	switch {
	case p.Err != nil && errors.Is(p.Err, context.Canceled):
		return nil
	case p.Err != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, control.ReasonOf(p.Err, git.ReasonStatusPushFailed), p.Err.Error()
	default:
		revision := p.Pushed.Revision.String()
		c.Message = revision
		if p.Pushed.Rewritten != "" {
			c.Reason = "StatusRewritten"
			c.Message += "; the branch had been changed by others, its tip was " + p.Pushed.Rewritten
		}
		pushed = &v1alpha1.StatusCommit{Revision: revision, Time: metav1.NewTime(p.Time.UTC().Truncate(time.Second))}
	}
	return r.PatchLatestStatus(ctx, &obj, func(o *v1alpha1.GitSource) bool {
		if pushed != nil {
			o.Status.StatusCommit = pushed
		}
		o.Status.Conditions = status.Fold(o.Status.Conditions, o.Generation, now, []status.Condition{c})
		return true
	})
}
