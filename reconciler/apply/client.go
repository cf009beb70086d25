// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/live"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
)

// callTimeout bounds one request. It exceeds the longest timeout of a webhook (30
// seconds).
const callTimeout = 40 * time.Second

// metadataOnly requests the object's metadata, as protobuf if the server
// supports it.
const metadataOnly = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// wire sends requests with JSON bodies and decodes metadata responses. Unlike
// client-go's metadata client, it reports whether an apply created the object.
type wire struct {
	client rest.Interface
	budget *budget
}

func newWire(cfg *rest.Config, budget *budget) (*wire, error) {
	rc := rest.CopyConfig(cfg)
	rc.QPS, rc.Burst, rc.RateLimiter = -1, 0, nil // The server has priority and fairness.
	rc.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	rc.ContentType = runtime.ContentTypeJSON
	rc.NegotiatedSerializer = metainternalversionscheme.Codecs.WithoutConversion()
	rc.WarningHandler = rest.NoWarnings{}
	rc.GroupVersion = &schema.GroupVersion{}
	rc.APIPath = "/all-requests-have-an-absolute-path"
	if rc.UserAgent == "" {
		rc.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	client, err := rest.RESTClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("create the apply client: %w", err)
	}
	return &wire{client: client, budget: budget}, nil
}

// target is an object's location on the server.
type target struct {
	mapping         *meta.RESTMapping
	namespace, name string
}

func (t target) path(withName bool) []string {
	r := t.mapping.Resource
	p := []string{"apis", r.Group, r.Version}
	if r.Group == "" {
		p = []string{"api", r.Version}
	}
	if t.namespace != "" {
		p = append(p, "namespaces", t.namespace)
	}
	p = append(p, r.Resource)
	if withName {
		p = append(p, t.name)
	}
	return p
}

// do sends a request within the budget and callTimeout.
func (w *wire) do(ctx context.Context, req *rest.Request) (*metav1.PartialObjectMetadata, int, error) {
	place, err := w.budget.acquire(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer place.release()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var code int
	result := req.SetHeader("Accept", metadataOnly).Do(ctx).StatusCode(&code)
	if err := result.Error(); err != nil {
		return nil, code, err
	}
	response, err := decode(result)
	return response, code, err
}

func decode(result rest.Result) (*metav1.PartialObjectMetadata, error) {
	obj, err := result.Get()
	if runtime.IsNotRegisteredError(err) {
		raw, err := result.Raw()
		if err != nil {
			return nil, err
		}
		partial := &metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(raw, partial); err != nil {
			return nil, fmt.Errorf("decode the server's response: %w", err)
		}
		return partial, nil
	}
	if err != nil {
		return nil, err
	}
	switch o := obj.(type) {
	case *metav1.PartialObjectMetadata:
		return o, nil
	case *metav1.Status:
		return &metav1.PartialObjectMetadata{}, nil // A completed deletion.
	default:
		return nil, fmt.Errorf("decode the server's response: got a %T, want object metadata", obj)
	}
}

// client sends the requests of one set and counts them.
type client struct {
	wire    *wire
	manager string
	metrics *Metrics
}

// get reads an object's metadata.
func (c *client) get(ctx context.Context, t target) (*metav1.PartialObjectMetadata, error) {
	o, _, err := c.wire.do(ctx, c.wire.client.Get().AbsPath(t.path(true)...))
	c.metrics.request("get", outcome(err))
	return o, err
}

// apply sends a forced server-side apply. before is the object's cached state,
// which shows whether the apply changed the object.
func (c *client) apply(ctx context.Context, t target, body []byte, before live.View) (response *metav1.PartialObjectMetadata, created bool, err error) {
	response, created, err = c.patch(ctx, t, types.ApplyPatchType, body, c.applyOptions())
	result := "configured"
	switch {
	case err != nil:
		result = "error"
	case created:
		result = "created"
	case before.State == live.Present && before.Object.ResourceVersion == response.ResourceVersion:
		result = "unchanged"
	}
	c.metrics.request("apply", result)
	return response, created, err
}

// dryRunApply sends the apply as a dry run.
func (c *client) dryRunApply(ctx context.Context, t target, body []byte) error {
	opts := c.applyOptions()
	opts.DryRun = []string{metav1.DryRunAll}
	_, _, err := c.patch(ctx, t, types.ApplyPatchType, body, opts)
	c.metrics.request("dry-run", outcome(err))
	return err
}

// dryRunCreate sends a creation as a dry run.
func (c *client) dryRunCreate(ctx context.Context, t target, body []byte) error {
	opts := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: c.manager}
	req := c.wire.client.Post().AbsPath(t.path(false)...).SetHeader("Content-Type", runtime.ContentTypeJSON).
		Body(body).VersionedParams(&opts, metav1.ParameterCodec)
	_, _, err := c.wire.do(ctx, req)
	c.metrics.request("dry-run", outcome(err))
	return err
}

// delete deletes the object with the UID and no other, after its dependents.
func (c *client) delete(ctx context.Context, t target, uid types.UID) error {
	policy := metav1.DeletePropagationForeground
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions:     metav1.NewUIDPreconditions(string(uid)),
		PropagationPolicy: &policy,
	})
	if err != nil {
		return fmt.Errorf("encode delete options: %w", err)
	}
	req := c.wire.client.Delete().AbsPath(t.path(true)...).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body)
	_, _, err = c.wire.do(ctx, req)
	c.metrics.request("delete", outcome(err))
	return err
}

// rewriteTries bounds the attempts to rewrite managedFields while controllers
// write the object, as they do after its creation. Each pause between attempts
// is longer by rewritePause.
const (
	rewriteTries = 8
	rewritePause = 20 * time.Millisecond
)

// rewriteFields replaces the managedFields of an object and nothing else. change
// returns nil if nothing changes.
func (c *client) rewriteFields(ctx context.Context, id payload.ObjectID, t target, change func([]metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error)) error {
	for try := 1; ; try++ {
		o, err := c.get(ctx, t)
		if err != nil {
			return classify(id, err)
		}
		entries, err := change(o.ManagedFields)
		if err != nil || entries == nil {
			return classify(id, err)
		}
		body, err := managedfields.Patch(entries, o.ResourceVersion)
		if err != nil {
			return fmt.Errorf("encode the managed fields of %s: %w", id, err)
		}
		_, _, err = c.patch(ctx, t, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: c.manager})
		c.metrics.request("rewrite", outcome(err))
		if err == nil || !apierrors.IsConflict(err) || try == rewriteTries {
			return classify(id, err)
		}
		if !sleep(ctx, time.Duration(try)*rewritePause) {
			return ctx.Err()
		}
	}
}

func (c *client) applyOptions() metav1.PatchOptions {
	force := true
	return metav1.PatchOptions{FieldManager: c.manager, Force: &force}
}

func (c *client) patch(ctx context.Context, t target, kind types.PatchType, body []byte, opts metav1.PatchOptions) (*metav1.PartialObjectMetadata, bool, error) {
	req := c.wire.client.Patch(kind).AbsPath(t.path(true)...).Body(body).VersionedParams(&opts, metav1.ParameterCodec)
	response, code, err := c.wire.do(ctx, req)
	return response, code == http.StatusCreated, err
}

// sleep waits for d; it returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
