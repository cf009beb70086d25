// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package writeback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/status"
	"github.com/lockstep-dev/lockstep/sources"
)

// Informers returns the informer of one of the declared kinds.
type Informers interface {
	GetInformer(ctx context.Context, obj client.Object, opts ...cache.InformerGetOption) (cache.Informer, error)
}

// Store has the persisted state of the sources.
type Store interface {
	// Source returns the accepted revision of a source, false if there is none.
	Source(name string) (Accepted, bool)
	// SetPublished records the last published report of a source.
	SetPublished(ctx context.Context, name string, p Published) error
}

// Accepted is the accepted revision of a source.
type Accepted struct {
	// Revision is the accepted revision with its tree, Time the time at which
	// it was accepted.
	Revision sources.Revision
	Time     time.Time
	// Signer is the verified signer, nil for an unverified revision.
	Signer *sources.Signer
	// Published is the last published report, zero if there is none.
	Published Published
}

// Published identifies the last report on a status branch.
type Published struct {
	// Key is its Report.Key, Commit the hash of its commit.
	Key, Commit string
}

// Branches opens the status branches of sources.
type Branches interface {
	// Open returns the publisher of the status branch of source in the
	// repository at url. last is the hash of the last published commit, "" if
	// there is none.
	Open(source *v1alpha1.GitSource, url, last string) (Publisher, error)
}

// Config configures a Reporter. All fields but Log and Insecure are required.
type Config struct {
	// Client reads the declared objects.
	Client    client.Reader
	Informers Informers
	Store     Store
	Branches  Branches
	// Ready returns once Store is loaded.
	Ready func(ctx context.Context) error
	// Edited reports whether a source's spec differs from the declared one.
	Edited func(source *v1alpha1.GitSource) bool
	// PatchStatus writes the status of source as change leaves it. After a
	// conflict it calls change again with the fresh object.
	PatchStatus func(ctx context.Context, source *v1alpha1.GitSource, change func(*v1alpha1.GitSource) bool) error
	// Insecure are the active insecure options.
	Insecure []string
	// Now is the clock.
	Now func() time.Time
	Log logr.Logger
}

// Reporter publishes a report for each GitSource with spec.writeBack: it runs
// one Writer per source and sends it a new report after each change of a
// declared object. It implements manager.Runnable.
type Reporter struct {
	cfg Config
	// dirty holds at most one notification of a change.
	dirty   chan struct{}
	results chan published
	// writers are used by the loop alone; running counts their goroutines.
	writers map[string]*sourceWriter
	running sync.WaitGroup
}

// sourceWriter is the writer of one source, for one spec of it.
type sourceWriter struct {
	spec    v1alpha1.WriteBack
	url     string
	cluster string
	writer  *Writer
	// stop ends the writer and waits for it.
	stop func()
}

// published is a result and its source.
type published struct {
	source string
	Result
}

// New returns a Reporter that does nothing before Start.
func New(cfg Config) (*Reporter, error) {
	switch {
	case cfg.Client == nil, cfg.Informers == nil, cfg.Store == nil, cfg.Branches == nil:
		return nil, errors.New("status reporter: Client, Informers, Store and Branches are required")
	case cfg.Ready == nil, cfg.Edited == nil, cfg.PatchStatus == nil, cfg.Now == nil:
		return nil, errors.New("status reporter: Ready, Edited, PatchStatus and Now are required")
	}
	return &Reporter{cfg: cfg, dirty: make(chan struct{}, 1), results: make(chan published, 16), writers: map[string]*sourceWriter{}}, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Reporter) NeedLeaderElection() bool { return true }

// Start runs until ctx ends and all writers have returned.
func (r *Reporter) Start(ctx context.Context) error {
	if err := r.cfg.Ready(ctx); err != nil {
		return nil // ctx ended
	}
	if err := r.watch(ctx); err != nil {
		return err
	}
	defer r.running.Wait()
	r.loop(ctx)
	return nil
}

// watch marks the reports dirty at each change of a declared object.
func (r *Reporter) watch(ctx context.Context) error {
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
		informer, err := r.cfg.Informers.GetInformer(ctx, obj)
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

// settle is how long changes are collected before a report. It starts at the
// first change, so that continuous changes don't postpone the report.
const settle = 300 * time.Millisecond

func (r *Reporter) loop(ctx context.Context) {
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
			r.logError(r.report(ctx), "unable to create the status report")
		case p := <-r.results:
			r.logError(r.record(ctx, p), "unable to record the result of the write-back")
		}
	}
}

// logError logs an error, unless it is context.Canceled.
func (r *Reporter) logError(err error, message string) {
	if err != nil && !errors.Is(err, context.Canceled) {
		r.cfg.Log.Error(err, message, "reason", reasonOf(err, "Error"))
	}
}

// report sends each writer a report of the declared objects, and stops the
// writers of sources that don't have write-back any more.
func (r *Reporter) report(ctx context.Context) error {
	snap, err := takeSnapshot(ctx, r.cfg.Client)
	if err != nil {
		return err
	}
	active := map[string]bool{}
	var failures []error
	for i := range snap.sources {
		source := &snap.sources[i]
		if r.cfg.Edited(source) {
			active[source.Name] = true // keep the writer of the declared spec
			continue
		}
		// A suspended source isn't fetched, but its objects are still reported.
		if source.Spec.WriteBack == nil {
			continue
		}
		accepted, ok := r.cfg.Store.Source(source.Name)
		if !ok && source.Status.AttemptedRevision == nil {
			continue // nothing to report yet
		}
		active[source.Name] = true
		writer, err := r.writer(ctx, source, accepted.Published)
		if err != nil {
			failures = append(failures, r.record(ctx, published{source: source.Name, Result: Result{Err: err, Time: r.cfg.Now()}}))
			continue
		}
		writer.Put(snap.report(source, accepted, r.cfg.Insecure))
	}
	for name, writer := range r.writers {
		if !active[name] {
			writer.stop()
			delete(r.writers, name)
		}
	}
	return errors.Join(failures...)
}

// writer returns the writer of a source. It replaces the writer after a change
// of the spec.
func (r *Reporter) writer(ctx context.Context, source *v1alpha1.GitSource, last Published) (*Writer, error) {
	spec := source.Spec.WriteBack
	url := spec.URL
	if url == "" {
		url = source.Spec.URL
	}
	if have := r.writers[source.Name]; have != nil {
		if have.url == url && have.cluster == source.Spec.Cluster && equality.Semantic.DeepEqual(have.spec, *spec) {
			return have.writer, nil
		}
		have.stop()
		delete(r.writers, source.Name)
	}
	publisher, err := r.cfg.Branches.Open(source, url, last.Commit)
	if err != nil {
		return nil, err
	}
	name := source.Name
	writer, err := NewWriter(WriterConfig{
		Publisher: publisher, MinInterval: spec.MinInterval.Duration, Keep: int(spec.Keep), Now: r.cfg.Now,
		OnResult: func(res Result) {
			select {
			case r.results <- published{source: name, Result: res}:
			default: // the next result replaces it
			}
		},
	}, last.Key)
	if err != nil {
		return nil, err
	}
	r.writers[name] = &sourceWriter{spec: *spec.DeepCopy(), url: url, cluster: source.Spec.Cluster, writer: writer, stop: r.run(ctx, writer)}
	return writer, nil
}

// run starts a writer; stop ends it and waits for it.
func (r *Reporter) run(ctx context.Context, writer *Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	r.running.Go(func() {
		defer close(done)
		r.logError(writer.Run(ctx), "status writer failed")
	})
	return func() {
		cancel()
		<-done
	}
}

// record stores the published report and reports the result in the status of
// the source.
func (r *Reporter) record(ctx context.Context, p published) error {
	if p.Err == nil {
		if err := r.cfg.Store.SetPublished(ctx, p.source, Published{Key: p.Key, Commit: p.Pushed.Revision.Hash}); err != nil {
			return err
		}
	}
	if errors.Is(p.Err, context.Canceled) {
		return nil
	}
	var obj v1alpha1.GitSource
	if err := r.cfg.Client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.Namespace, Name: p.source}, &obj); err != nil {
		return client.IgnoreNotFound(err)
	}
	now := metav1.NewTime(r.cfg.Now().UTC().Truncate(time.Second))
	ready := writeBackReady(p.Result)
	return r.cfg.PatchStatus(ctx, &obj, func(o *v1alpha1.GitSource) bool {
		if p.Err == nil {
			o.Status.StatusCommit = &v1alpha1.StatusCommit{Revision: p.Pushed.Revision.String(), Time: metav1.NewTime(p.Time.UTC().Truncate(time.Second))}
		}
		o.Status.Conditions = status.Fold(o.Status.Conditions, o.Generation, now, []status.Condition{ready})
		return true
	})
}

// reasonPushFailed is the reason of errors without one, and
// reasonPushDenied that of a server whose policy rejects the push.
const (
	reasonPushFailed = "StatusPushFailed"
	reasonPushDenied = "StatusPushDenied"
)

// writeBackReady returns the condition WriteBackReady after a publication.
func writeBackReady(res Result) status.Condition {
	const typ = v1alpha1.ConditionWriteBackReady
	revision := res.Pushed.Revision.String()
	switch {
	case res.Err != nil:
		return status.False(typ, reasonOf(res.Err, reasonPushFailed), res.Err.Error())
	case res.Pushed.Rewritten != "":
		return status.True(typ, "StatusRewritten", revision+"; replaced commit "+res.Pushed.Rewritten+", which Lockstep didn't write")
	}
	return status.True(typ, "Pushed", revision)
}

// reasonOf returns the condition reason of an error, or fallback.
func reasonOf(err error, fallback string) string {
	var r interface{ Reason() string }
	if errors.As(err, &r) && r.Reason() != "" {
		return r.Reason()
	}
	return fallback
}
