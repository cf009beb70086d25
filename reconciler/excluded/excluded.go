// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package excluded keeps in the cluster what a release's selection leaves out of
// its payload, so that people can be told why an object of the payload isn't
// there without its payload at hand. Nothing is decided by it.
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
	// format is the version of the stored form; readers take one less to one
	// more, as long as lines keep their meaning.
	format = 1
	// maxBytes bounds what is kept of one release; the rest is counted.
	maxBytes = 512 << 10
	// maxName is the longest name of a release that is part of the ConfigMap's.
	maxName = 200
	// page is how many ConfigMaps are read at once.
	page = 50

	label      = "lockstep.dev/excluded"
	keyFormat  = "format"
	keyRelease = "release"
	keyVersion = "version"
	keyTotal   = "total"
	keyEntries = "entries"
)

// Entry is a document that was left out.
type Entry struct {
	payload.ObjectID
	// Place is the file within the payload and the line in it.
	Place string `json:"place"`
	// Reason is one of payload's Skip constants; Detail says what was missing.
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"`
}

// Found is an entry with the release whose payload has it.
type Found struct {
	Entry
	Release, Version string
}

// Recorder keeps what one release leaves out. It is for one goroutine at a time.
type Recorder struct {
	client  typedcorev1.ConfigMapInterface
	release string
	// last is what was read or written last, nil where there is none.
	last   *corev1.ConfigMap
	looked bool
	// kept is the payload that last is about.
	kept *payload.Payload
}

// New returns a keeper in the namespace of the client.
func New(client typedcorev1.ConfigMapInterface, release string) *Recorder {
	return &Recorder{client: client, release: release}
}

// nameOf is the ConfigMap of a release.
func nameOf(release string) string {
	if len(release) > maxName {
		digest := sha256.Sum256([]byte(release))
		release = release[:maxName] + "-" + hex.EncodeToString(digest[:6])
	}
	return "lockstep-excluded-" + release
}

// Record writes what the payload leaves out, if that isn't there yet. Repeated
// for the same payload it asks the server nothing.
func (k *Recorder) Record(ctx context.Context, p *payload.Payload) error {
	if p == nil || k.kept == p {
		return nil
	}
	if err := k.look(ctx); err != nil {
		return err
	}
	if err := k.write(ctx, dataOf(k.release, p)); err != nil {
		k.looked = false // Somebody else may have written it.
		return fmt.Errorf("configmap %s: %w", nameOf(k.release), err)
	}
	k.kept = p
	return nil
}

// look reads what an earlier process kept.
func (k *Recorder) look(ctx context.Context) error {
	if k.looked {
		return nil
	}
	cm, err := k.client.Get(ctx, nameOf(k.release), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		cm = nil
	case err != nil:
		return fmt.Errorf("read configmap %s: %w", nameOf(k.release), err)
	}
	k.last, k.looked = cm, true
	return nil
}

func (k *Recorder) write(ctx context.Context, data map[string]string) error {
	var err error
	switch {
	case data == nil && k.last == nil, k.last != nil && maps.Equal(data, k.last.Data):
		return nil
	case data == nil:
		if err = Forget(ctx, k.client, k.release); err == nil {
			k.last = nil
		}
		return err
	}
	next := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name: nameOf(k.release), Labels: map[string]string{label: "", "app.kubernetes.io/part-of": "lockstep"},
		},
		Data: data,
	}
	if k.last == nil {
		next, err = k.client.Create(ctx, next, metav1.CreateOptions{})
	} else {
		next.ResourceVersion = k.last.ResourceVersion
		next, err = k.client.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err == nil {
		k.last = next
	}
	return err
}

// Forget deletes what is kept of a release that is gone.
func Forget(ctx context.Context, client typedcorev1.ConfigMapInterface, release string) error {
	err := client.Delete(ctx, nameOf(release), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// dataOf is the stored form, nil if nothing is left out.
func dataOf(release string, p *payload.Payload) map[string]string {
	if len(p.Skipped) == 0 {
		return nil
	}
	var lines strings.Builder
	for i := range p.Skipped {
		s := &p.Skipped[i]
		line, err := json.Marshal(Entry{ObjectID: s.ID, Place: fmt.Sprintf("%s:%d", s.File, s.Line), Reason: s.Reason, Detail: s.Detail})
		if err != nil || lines.Len()+len(line) >= maxBytes {
			break // Strings always have a form in JSON.
		}
		lines.Write(line)
		lines.WriteByte('\n')
	}
	return map[string]string{
		keyFormat: strconv.Itoa(format), keyRelease: release, keyVersion: p.Version,
		keyTotal: strconv.Itoa(len(p.Skipped)), keyEntries: lines.String(),
	}
}

// Find returns the documents of an object that releases leave out.
func Find(ctx context.Context, client typedcorev1.ConfigMapInterface, id payload.ObjectID) ([]Found, error) {
	var found []Found
	opts := metav1.ListOptions{LabelSelector: label, Limit: page}
	for {
		list, err := client.List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("read what releases leave out: %w", err)
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

// findIn looks through the stored form of one release.
func findIn(data map[string]string, id payload.ObjectID) ([]Found, error) {
	if n, err := strconv.Atoi(data[keyFormat]); err != nil || n < format-1 || n > format+1 {
		return nil, fmt.Errorf("format %.20q: this version reads %d to %d", data[keyFormat], format-1, format+1)
	}
	var found []Found
	for line := range strings.Lines(data[keyEntries]) {
		var e Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return nil, fmt.Errorf("decode an entry: %w", err)
		}
		if e.ObjectID == id {
			found = append(found, Found{Entry: e, Release: data[keyRelease], Version: cmp.Or(data[keyVersion], "?")})
		}
	}
	return found, nil
}
