// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// ObjectID identifies an object of the cluster independently of its API version.
// It is comparable.
type ObjectID struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns "apps Deployment web/api", without empty parts: "Namespace web".
func (id ObjectID) String() string {
	var b strings.Builder
	b.Grow(len(id.Group) + len(id.Kind) + len(id.Namespace) + len(id.Name) + 3)
	if id.Group != "" {
		b.WriteString(id.Group)
		b.WriteByte(' ')
	}
	b.WriteString(id.Kind)
	b.WriteByte(' ')
	if id.Namespace != "" {
		b.WriteString(id.Namespace)
		b.WriteByte('/')
	}
	b.WriteString(id.Name)
	return b.String()
}

// Compare orders by group, kind, namespace and name.
func (id ObjectID) Compare(other ObjectID) int {
	for _, pair := range [...][2]string{
		{id.Group, other.Group},
		{id.Kind, other.Kind},
		{id.Namespace, other.Namespace},
		{id.Name, other.Name},
	} {
		if c := strings.Compare(pair[0], pair[1]); c != 0 {
			return c
		}
	}
	return 0
}

// WaitPolicy defines how long an update waits for a slow object, such as a NodeOS.
type WaitPolicy string

// The wait policies; "" means WaitComplete.
const (
	// WaitComplete waits until the object is in sync and ready.
	WaitComplete WaitPolicy = "complete"
	// WaitStarted waits until the object's controller has started its work.
	WaitStarted WaitPolicy = "started"
	// WaitNone doesn't wait.
	WaitNone WaitPolicy = "none"
)

// Manifest is the desired state of one object in a release.
type Manifest struct {
	// Object is normalised: stringData is merged into data; status, metadata set
	// by the server and the rules beside an aggregationRule are removed; empty
	// lists and maps remain. It must not be modified.
	Object *unstructured.Unstructured
	// JSON is the canonical JSON of Object, as sent to the API server.
	JSON []byte
	// GVK is the object's group, version and kind.
	GVK schema.GroupVersionKind
	// ID is the object's identity.
	ID ObjectID

	// File is the path within the payload. Document is counted from 1 within the
	// file; Line is the first line of the document.
	File           string
	Document, Line int
	// RunLevel and Component are parsed from the file name, 0000_<run
	// level>_<component>_<rest>.yaml. For other names they are -1 and "".
	RunLevel  int
	Component string
	// Hash is the SHA-256 of JSON.
	Hash [sha256.Size]byte

	// CreateOnly creates the object if it is absent and never updates it.
	CreateOnly bool
	// Delete deletes the object.
	Delete bool
	// Replace deletes and recreates the object if an immutable field changed.
	Replace bool
	// ForceFields never yields fields that another field manager contests
	// (lockstep.dev/ssa: force).
	ForceFields bool
	// RollbackFirst applies the object before all run levels of a rollback. It is
	// the default for NodeOS.
	RollbackFirst bool
	// PruneConfirmed allows pruning of kinds that require consent.
	PruneConfirmed bool
	// PruneDisabled protects the object: it is kept when it leaves the payload, and
	// when its release is deleted.
	PruneDisabled bool
	// IgnoreFields are JSON pointers of fields that aren't managed.
	IgnoreFields []string
	// Health is a CEL expression for readiness, or "".
	Health string
	// Wait is the wait policy.
	Wait WaitPolicy
	// Versions that a ClusterOperator must report to be ready, by operand, from
	// the manifest's status.versions, which isn't applied. Nil for other kinds.
	Versions map[string]string
}

// NewManifest returns the manifest of a copy of obj, normalised and with its
// annotations evaluated. RunLevel is -1; File, Document, Line and Component are
// empty.
func NewManifest(obj *unstructured.Unstructured) (Manifest, error) {
	if obj == nil || obj.Object == nil {
		return Manifest{}, &LoadError{Kind: ReasonInvalid, Message: "the object is empty"}
	}
	var b builder
	// Checked first, since DeepCopy panics on values that JSON doesn't have, such
	// as int.
	if err := b.canonical(obj.Object); err != nil {
		return Manifest{}, err
	}
	made, err := b.build(obj.DeepCopy().Object)
	if err != nil {
		return Manifest{}, err
	}
	return made.manifest, nil
}

// built is a manifest with data for Load.
type built struct {
	manifest Manifest
	// raw is the hash of the object before normalisation. It is the input of the
	// version hash, which must not depend on normalisation.
	raw [sha256.Size]byte
	// badAnnotations is true if an annotation isn't a string.
	badAnnotations bool
}

// builder builds manifests and reuses the buffer for their canonical JSON.
type builder struct{ scratch []byte }

// build takes ownership of content. With an error, the result is partial.
func (b *builder) build(content map[string]any) (built, error) {
	out := built{manifest: Manifest{Object: &unstructured.Unstructured{Object: content}, RunLevel: -1}}
	m := &out.manifest
	if err := b.canonical(content); err != nil {
		return out, err
	}
	out.raw = sha256.Sum256(b.scratch)
	if err := m.identify(); err != nil {
		return out, err
	}
	m.Versions = operandVersions(m.ID, content)
	changed, err := normalize(content)
	if err != nil {
		return out, fmt.Errorf("%s: %w", m.ID, err)
	}
	m.Hash = out.raw
	if changed {
		if err := b.canonical(content); err != nil {
			return out, fmt.Errorf("%s: %w", m.ID, err)
		}
		m.Hash = sha256.Sum256(b.scratch)
	}
	m.JSON = bytes.Clone(b.scratch)
	if out.badAnnotations, err = m.annotate(); err != nil {
		return out, fmt.Errorf("%s: %w", m.ID, err)
	}
	return out, nil
}

// canonical stores the canonical JSON of content in scratch.
func (b *builder) canonical(content map[string]any) (err error) {
	b.scratch, err = appendCanonical(b.scratch[:0], content)
	if err == nil && len(b.scratch) > maxDocument {
		err = &LoadError{Kind: ReasonLimit, Message: fmt.Sprintf("object has %d bytes as JSON, at most %d are allowed", len(b.scratch), maxDocument)}
	}
	return err
}

func (m *Manifest) identify() error {
	apiVersion, err := stringField(m.Object.Object, "apiVersion")
	if err != nil {
		return err
	}
	kind, err := stringField(m.Object.Object, "kind")
	if err != nil {
		return err
	}
	if kind == "" || apiVersion == "" {
		return &LoadError{Kind: ReasonInvalid, Message: "the document has no apiVersion or kind"}
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("invalid apiVersion %q: must have the form group/version", apiVersion)}
	}
	metadata, _ := m.Object.Object["metadata"].(map[string]any)
	name, err := stringField(metadata, "name")
	if err != nil {
		return err
	}
	namespace, err := stringField(metadata, "namespace")
	if err != nil {
		return err
	}
	if name == "" {
		return &LoadError{Kind: ReasonInvalid, Message: kind + " has no metadata.name; generateName isn't supported"}
	}
	m.GVK = gv.WithKind(kind)
	m.ID = ObjectID{Group: gv.Group, Kind: kind, Namespace: namespace, Name: name}
	return nil
}

// stringField returns the string at key, "" if it's absent.
func stringField(content map[string]any, key string) (string, error) {
	switch v := content[key].(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	default:
		return "", &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("%s is a %s, must be a string; quote it", key, typeName(v))}
	}
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case int64, float64:
		return "number"
	case string:
		return "string"
	case []any:
		return "list"
	default:
		return "mapping"
	}
}

// IsClusterOperator reports whether the object is OpenShift's ClusterOperator.
func (id ObjectID) IsClusterOperator() bool {
	return id.GroupKind() == kinds.ClusterOperator
}

// IsJob reports whether the object is a batch Job. Jobs are barriers in their
// component.
func (id ObjectID) IsJob() bool { return id.GroupKind() == kinds.Job }

// GroupKind returns the kind without its version.
func (id ObjectID) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: id.Group, Kind: id.Kind}
}

// operandVersions returns the versions in a ClusterOperator's manifest. Invalid
// entries are dropped, as in CVO's typed decoder.
func operandVersions(id ObjectID, content map[string]any) map[string]string {
	if !id.IsClusterOperator() {
		return nil
	}
	status, _ := content["status"].(map[string]any)
	list, _ := status["versions"].([]any)
	out := make(map[string]string, len(list))
	for _, item := range list {
		entry, _ := item.(map[string]any)
		name, _ := entry["name"].(string)
		version, _ := entry["version"].(string)
		if name != "" && version != "" {
			out[name] = version
		}
	}
	return out
}
