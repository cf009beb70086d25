// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package excluded records in a ConfigMap which manifests of a payload a release
// excludes, so that the CLI can explain a missing object without the payload. The
// record is informational; the reconciler doesn't read it for decisions.
package excluded

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/payload"
)

const (
	// format is the version of the stored format. Readers accept versions from
	// one lower to one higher.
	format = 1
	// maxBytes bounds the entries of one release; keyTotal counts all of them.
	maxBytes = 512 << 10
	// maxName bounds the part of the ConfigMap's name that is the release's.
	maxName = 200
	// page is the number of ConfigMaps per list request.
	page = 50

	label      = "lockstep.dev/excluded"
	keyFormat  = "format"
	keyRelease = "release"
	keyVersion = "version"
	keyTotal   = "total"
	keyEntries = "entries"
)

// Entry is an excluded manifest.
type Entry struct {
	payload.ObjectID
	// Place is FILE:LINE within the payload.
	Place string `json:"place"`
	// Reason is one of payload's Skip constants. Detail names what is missing,
	// for example a capability.
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"`
}

// Found is an entry with the release that excludes it.
type Found struct {
	Entry
	Release, Version string
}

// Recorder records the manifests that one release excludes. It isn't safe for
// concurrent use.
type Recorder struct {
	client  typedcorev1.ConfigMapInterface
	release string
	// last is the ConfigMap as last read or written, nil if there is none.
	last   *corev1.ConfigMap
	loaded bool
	// recorded is the payload that last describes.
	recorded *payload.Payload
}

// New returns a Recorder for the ConfigMap of a release in the client's namespace.
func New(client typedcorev1.ConfigMapInterface, release string) *Recorder {
	return &Recorder{client: client, release: release}
}

// nameOf returns the name of a release's ConfigMap.
func nameOf(release string) string {
	if len(release) > maxName {
		digest := sha256.Sum256([]byte(release))
		release = release[:maxName] + "-" + hex.EncodeToString(digest[:6])
	}
	return "lockstep-excluded-" + release
}

// Record writes the excluded manifests of the payload unless they are recorded
// already. Repeated calls with the same payload send no requests.
func (r *Recorder) Record(ctx context.Context, p *payload.Payload) error {
	if p == nil || r.recorded == p {
		return nil
	}
	if err := r.load(ctx); err != nil {
		return err
	}
	if err := r.write(ctx, dataOf(r.release, p)); err != nil {
		r.loaded = false // Another writer may have changed it.
		return fmt.Errorf("configmap %s: %w", nameOf(r.release), err)
	}
	r.recorded = p
	return nil
}

// load reads the ConfigMap once.
func (r *Recorder) load(ctx context.Context) error {
	if r.loaded {
		return nil
	}
	cm, err := r.client.Get(ctx, nameOf(r.release), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		cm = nil
	case err != nil:
		return fmt.Errorf("read configmap %s: %w", nameOf(r.release), err)
	}
	r.last, r.loaded = cm, true
	return nil
}

func (r *Recorder) write(ctx context.Context, data map[string]string) error {
	var err error
	switch {
	case data == nil && r.last == nil, r.last != nil && maps.Equal(data, r.last.Data):
		return nil
	case data == nil:
		if err = Delete(ctx, r.client, r.release); err == nil {
			r.last = nil
		}
		return err
	}
	next := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: nameOf(r.release), Labels: map[string]string{label: "", "app.kubernetes.io/part-of": "lockstep"},
		},
		Data: data,
	}
	if r.last == nil {
		next, err = r.client.Create(ctx, next, metav1.CreateOptions{})
	} else {
		next.ResourceVersion = r.last.ResourceVersion
		next, err = r.client.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err == nil {
		r.last = next
	}
	return err
}

// Delete deletes the record of a deleted release. A missing one isn't an error.
func Delete(ctx context.Context, client typedcorev1.ConfigMapInterface, release string) error {
	err := client.Delete(ctx, nameOf(release), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// dataOf returns the stored format, nil if the payload excludes nothing.
func dataOf(release string, p *payload.Payload) map[string]string {
	if len(p.Skipped) == 0 {
		return nil
	}
	var lines strings.Builder
	for i := range p.Skipped {
		s := &p.Skipped[i]
		line, err := json.Marshal(Entry{ObjectID: s.ID, Place: fmt.Sprintf("%s:%d", s.File, s.Line), Reason: s.Reason, Detail: s.Detail})
		if err != nil || lines.Len()+len(line) >= maxBytes {
			break
		}
		lines.Write(line)
		lines.WriteByte('\n')
	}
	return map[string]string{
		keyFormat: strconv.Itoa(format), keyRelease: release, keyVersion: p.Version,
		keyTotal: strconv.Itoa(len(p.Skipped)), keyEntries: lines.String(),
	}
}

// Find returns the entries of all releases for one object.
func Find(ctx context.Context, client typedcorev1.ConfigMapInterface, id payload.ObjectID) ([]Found, error) {
	var found []Found
	opts := metav1.ListOptions{LabelSelector: label, Limit: page}
	for {
		list, err := client.List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list excluded manifests: %w", err)
		}
		for i := range list.Items {
			of, err := findIn(list.Items[i].Data, id)
			if err != nil {
				return nil, fmt.Errorf("configmap %s: %w", list.Items[i].Name, err)
			}
			found = append(found, of...)
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return found, nil
		}
	}
}

// findIn returns the entries for one object in the stored format of one release.
func findIn(data map[string]string, id payload.ObjectID) ([]Found, error) {
	if n, err := strconv.Atoi(data[keyFormat]); err != nil || n < format-1 || n > format+1 {
		return nil, fmt.Errorf("unsupported format %.20q: this version reads %d to %d", data[keyFormat], format-1, format+1)
	}
	var found []Found
	for line := range strings.Lines(data[keyEntries]) {
		var e Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return nil, fmt.Errorf("decode entry: %w", err)
		}
		if e.ObjectID == id {
			found = append(found, Found{Entry: e, Release: data[keyRelease], Version: cmp.Or(data[keyVersion], "?")})
		}
	}
	return found, nil
}
