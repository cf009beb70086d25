// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// callTimeout bounds one request: longer than the longest timeout that a
// webhook may have (30 seconds).
const callTimeout = 40 * time.Second

// metadataOnly asks for the answer's metadata, as protobuf where the server
// can.
const metadataOnly = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// wire makes the requests: bodies go as JSON, answers come as metadata. It is
// client-go's metadata client but for one thing: that one doesn't tell
// whether an apply created the object.
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
		return nil, fmt.Errorf("client for applying: %w", err)
	}
	return &wire{client: client, budget: budget}, nil
}

// target is where an object lives on the server.
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

// do sends a request within the budget and its deadline.
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
	answer, err := decode(result)
	return answer, code, err
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
			return nil, fmt.Errorf("decoding the server's answer: %w", err)
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
		return &metav1.PartialObjectMetadata{}, nil // A deletion that is complete.
	default:
		return nil, fmt.Errorf("the server answered with a %T, want object metadata", obj)
	}
}

// patch sends a patch. Its options are those of server-side apply for apply
// patches.
func (w *wire) patch(ctx context.Context, t target, kind types.PatchType, body []byte, opts metav1.PatchOptions) (*metav1.PartialObjectMetadata, bool, error) {
	req := w.client.Patch(kind).AbsPath(t.path(true)...).Body(body).VersionedParams(&opts, metav1.ParameterCodec)
	answer, code, err := w.do(ctx, req)
	return answer, code == http.StatusCreated, err
}

// create posts an object; it is used for dry runs only.
func (w *wire) create(ctx context.Context, t target, body []byte, opts metav1.CreateOptions) error {
	req := w.client.Post().AbsPath(t.path(false)...).SetHeader("Content-Type", runtime.ContentTypeJSON).
		Body(body).VersionedParams(&opts, metav1.ParameterCodec)
	_, _, err := w.do(ctx, req)
	return err
}

// get reads an object's metadata.
func (w *wire) get(ctx context.Context, t target) (*metav1.PartialObjectMetadata, error) {
	answer, _, err := w.do(ctx, w.client.Get().AbsPath(t.path(true)...))
	return answer, err
}

// delete deletes the object with that UID and no other.
func (w *wire) delete(ctx context.Context, t target, uid types.UID, policy metav1.DeletionPropagation) error {
	opts := metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions:     metav1.NewUIDPreconditions(string(uid)),
		PropagationPolicy: &policy,
	}
	body, err := json.Marshal(opts)
	if err != nil {
		return fmt.Errorf("encoding delete options: %w", err)
	}
	req := w.client.Delete().AbsPath(t.path(true)...).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body)
	_, _, err = w.do(ctx, req)
	return err
}
