// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// Names of the ConfigMaps of the store, and of their one key.
const (
	// MarkerName is the ConfigMap with the format of the store. In format 2 it had
	// all records.
	MarkerName = "lockstep-state"
	TrustName  = "lockstep-trust"
	key        = "state.json"
	// sourcePrefix and releasePrefix precede the name of the declared object.
	sourcePrefix  = "lockstep-state-source-"
	releasePrefix = "lockstep-state-release-"
	// format1Name had the sources and releases in format 1.
	format1Name = "lockstep-accepted"
)

// maxName is the maximum length of the name of a ConfigMap.
const maxName = 253

// SourceObject returns the name of the ConfigMap with the accepted state of a
// source.
func SourceObject(name string) string { return objectName(sourcePrefix, name) }

// ReleaseObject returns the name of the ConfigMap with the accepted state of a
// release.
func ReleaseObject(name string) string { return objectName(releasePrefix, name) }

// objectName shortens a long name to its start and a hash.
func objectName(prefix, name string) string {
	if full := prefix + name; len(full) <= maxName {
		return full
	}
	sum := sha256.Sum256([]byte(name))
	hash := "-" + hex.EncodeToString(sum[:16])
	return strings.TrimRight(prefix+name[:maxName-len(prefix)-len(hash)], "-.") + hash
}

// object is the name of the record's ConfigMap.
func (r record) object() string {
	if r.Kind == v1alpha1.KindGitSource {
		return SourceObject(r.Name)
	}
	return ReleaseObject(r.Name)
}

// objects reads and writes the ConfigMaps of the store. It isn't safe for
// concurrent use.
type objects struct {
	client typedcorev1.ConfigMapInterface
	// known are the ConfigMaps as last read or written, by name.
	known map[string]known
	// single has the records of format 2 until they are converted. marked is set
	// once MarkerName has Format.
	single, marked bool
}

// known is a ConfigMap as last read or written.
type known struct {
	// version is the resourceVersion, "" before the ConfigMap exists.
	version             string
	labels, annotations map[string]string
	content             [sha256.Size]byte
	// sent is the content of a write without a response, which may have succeeded.
	sent *[sha256.Size]byte
}

func newObjects(client typedcorev1.ConfigMapInterface) objects {
	return objects{client: client, known: map[string]known{}}
}

// listPage is the number of ConfigMaps per page of a list, which may be large ones
// of other stores.
const listPage = 50

// load reads all records.
func (o *objects) load(ctx context.Context) (document, error) {
	o.known, o.single, o.marked = map[string]known{}, false, false
	doc := document{}.clone()
	marker, err := o.read(ctx, MarkerName)
	if err != nil {
		return doc, err
	}
	stored, err := o.list(ctx)
	if err != nil {
		return doc, err
	}
	if marker != nil {
		if doc, err = o.decodeMarker(marker); err != nil {
			return doc, fmt.Errorf("configmap %s: %w; restore it from a backup, or accept every source again: %s", MarkerName, err, deleteCommand(MarkerName))
		}
	} else if len(stored) == 0 {
		if err := o.rejectFormat1(ctx); err != nil {
			return doc, err
		}
	}
	if o.single {
		// A conversion that didn't end is repeated from the single document.
		return doc, nil
	}
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		r, err := decodeRecord([]byte(stored[name]))
		if err == nil && r.object() != name {
			err = fmt.Errorf("it has the accepted state of %.300s", r.id())
		}
		if err != nil {
			return doc, fmt.Errorf("configmap %s: %w; restore it from a backup, or accept its %s again: %s", name, err, declaredAs(name), deleteCommand(name))
		}
		doc.set(r)
	}
	doc.settle()
	return doc, nil
}

// declaredAs returns what a record's ConfigMap is about.
func declaredAs(object string) string {
	if strings.HasPrefix(object, sourcePrefix) {
		return "source"
	}
	return "release"
}

// decodeMarker reads the format of the store, and all records of format 2.
func (o *objects) decodeMarker(raw []byte) (document, error) {
	var marker struct {
		Format int `json:"format"`
		document
	}
	if err := json.Unmarshal(raw, &marker); err != nil {
		return document{}.clone(), fmt.Errorf("decode: %w", err)
	}
	// An earlier version may have written the fields of format 3 in its own.
	if marker.Format == formatSingle || marker.Format == formatSingle+1 {
		o.single = true
		return marker.clone(), nil
	}
	o.marked = marker.Format == Format
	return document{}.clone(), checkFormat(marker.Format)
}

// list reads the records' ConfigMaps by name. It doesn't select by label: a removed
// label mustn't hide accepted state.
func (o *objects) list(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	opts := metav1.ListOptions{Limit: listPage}
	for {
		page, err := o.client.List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list the accepted state: %w", err)
		}
		for i := range page.Items {
			cm := &page.Items[i]
			if !strings.HasPrefix(cm.Name, sourcePrefix) && !strings.HasPrefix(cm.Name, releasePrefix) {
				continue
			}
			raw, err := o.remember(cm)
			if err != nil {
				return nil, err
			}
			out[cm.Name] = raw
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return out, nil
		}
	}
}

// rejectFormat1 returns an error if the store of format 1 exists, which had
// another name. Without it, an upgrade would treat the state as empty.
func (o *objects) rejectFormat1(ctx context.Context) error {
	_, err := o.client.Get(ctx, format1Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read configmap %s: %w", format1Name, err)
	}
	return fmt.Errorf("configmap %s: format 1 was written by an earlier version; this version reads format %d and %d to %d; accept every source again: %s",
		format1Name, formatSingle, Format, Format+1, deleteCommand(format1Name))
}

// deleteCommand deletes a ConfigMap of the store. The admission policy
// lockstep-state admits only the reconciler's service account.
func deleteCommand(name string) string {
	return "kubectl --as=system:serviceaccount:" + v1alpha1.Namespace + ":lockstep-reconciler -n " + v1alpha1.Namespace + " delete configmap " + name
}

// read returns the stored bytes, nil if the ConfigMap doesn't exist.
func (o *objects) read(ctx context.Context, name string) ([]byte, error) {
	cm, err := o.client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		delete(o.known, name)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configmap %s: %w", name, err)
	}
	raw, err := o.remember(cm)
	return []byte(raw), err
}

// remember records the ConfigMap that the next write replaces, and returns its
// content.
func (o *objects) remember(cm *corev1.ConfigMap) (string, error) {
	raw, ok := cm.Data[key]
	if !ok {
		return "", fmt.Errorf("configmap %s has no key %s; restore it from a backup", cm.Name, key)
	}
	o.known[cm.Name] = known{version: cm.ResourceVersion, labels: cm.Labels, annotations: cm.Annotations, content: sha256.Sum256([]byte(raw))}
	return raw, nil
}

// convert writes the records of format 2 as objects of their own, then the marker.
// A process that ends in between leaves the single document, from which the next
// one converts again. It does nothing once the marker has Format.
func (o *objects) convert(ctx context.Context, doc document) error {
	if o.marked {
		return nil
	}
	if o.single {
		keep := map[string]bool{TrustName: true, MarkerName: true}
		for _, r := range doc.records() {
			if err := o.put(ctx, r); err != nil {
				return err
			}
			keep[r.object()] = true
		}
		for _, name := range slices.Sorted(maps.Keys(o.known)) {
			if keep[name] {
				continue
			}
			if err := o.remove(ctx, name); err != nil {
				return err
			}
		}
	}
	if err := o.write(ctx, MarkerName, fmt.Appendf(nil, `{"format":%d}`, Format)); err != nil {
		return err
	}
	o.single, o.marked = false, true
	return nil
}

// put writes or removes a record.
func (o *objects) put(ctx context.Context, r record) error {
	if r.deleted() {
		return o.remove(ctx, r.object())
	}
	raw, err := r.encode()
	if err != nil {
		return err
	}
	return o.write(ctx, r.object(), raw)
}

// ErrConflict is returned when another process wrote the store: this one is no
// longer the leader, or must load again.
var ErrConflict = errors.New("the accepted state was changed by another writer")

// maxTries limits the tries of one write while others touch its object.
const maxTries = 5

// write replaces the content of a ConfigMap unless another writer changed it. A
// change of anything else, such as a label, is kept; a deleted ConfigMap is
// restored.
func (o *objects) write(ctx context.Context, name string, raw []byte) error {
	if len(raw) > MaxBytes {
		return &limitError{fmt.Errorf("write configmap %s: %d bytes exceed the limit of %d", name, len(raw), MaxBytes)}
	}
	content := sha256.Sum256(raw)
	for try := 1; ; try++ {
		was := o.known[name]
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, ResourceVersion: was.version, Labels: maps.Clone(was.labels), Annotations: maps.Clone(was.annotations),
			},
			Data: map[string]string{key: string(raw)},
		}
		metav1.SetMetaDataLabel(&cm.ObjectMeta, "app.kubernetes.io/part-of", "lockstep")
		var err error
		if was.version != "" {
			cm, err = o.client.Update(ctx, cm, metav1.UpdateOptions{})
		} else {
			cm, err = o.client.Create(ctx, cm, metav1.CreateOptions{})
		}
		if err == nil {
			_, err = o.remember(cm)
			return err
		}
		if !contested(err) {
			// Without a response the write may have succeeded.
			was.sent = &content
			o.known[name] = was
			return fmt.Errorf("write configmap %s: %w", name, err)
		}
		done, reread := o.reread(ctx, name, was, content)
		switch {
		case reread != nil:
			return fmt.Errorf("write configmap %s: %w", name, reread)
		case done:
			return nil
		case try == maxTries:
			return fmt.Errorf("write configmap %s: it changed at each of %d tries: %w", name, maxTries, err)
		}
	}
}

// contested reports whether a write failed because the object isn't as last seen.
func contested(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

// reread reads an object whose write was rejected. It reports whether the object
// already has the content to write; ErrConflict if it has neither that nor the
// content that this process last read or wrote.
func (o *objects) reread(ctx context.Context, name string, was known, want [sha256.Size]byte) (done bool, err error) {
	raw, err := o.read(ctx, name)
	if err != nil || raw == nil {
		return false, err // deleted: the next try creates it
	}
	found := sha256.Sum256(raw)
	switch {
	case found == want:
		return true, nil
	case was.version != "" && found == was.content, was.sent != nil && found == *was.sent:
		return false, nil
	}
	o.known[name] = was // later writes conflict too
	return false, ErrConflict
}

// remove deletes a ConfigMap unless another writer changed it.
func (o *objects) remove(ctx context.Context, name string) error {
	for try := 1; ; try++ {
		was := o.known[name]
		if was.version == "" && was.sent == nil {
			return nil
		}
		err := errors.New("its last write had no response")
		if was.version != "" {
			err = o.client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &was.version}})
			if err == nil || apierrors.IsNotFound(err) {
				delete(o.known, name)
				return nil
			}
			if !apierrors.IsConflict(err) {
				return fmt.Errorf("delete configmap %s: %w", name, err)
			}
		}
		if _, reread := o.reread(ctx, name, was, was.content); reread != nil {
			return fmt.Errorf("delete configmap %s: %w", name, reread)
		}
		if try == maxTries {
			return fmt.Errorf("delete configmap %s: it changed at each of %d tries: %w", name, maxTries, err)
		}
	}
}
