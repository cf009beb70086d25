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

// ObjectID names an object of the cluster independently of the API version it
// is written in. It is comparable and may key a map.
type ObjectID struct {
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns "apps Deployment web/api"; without group or namespace their
// parts are missing: "Namespace web".
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

// Compare orders identities by group, kind, namespace and name.
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

// WaitPolicy says how long an update waits for an object that takes its time,
// such as a NodeOS.
type WaitPolicy string

// The wait policies; the empty one means WaitComplete.
const (
	// WaitComplete waits until the object is level.
	WaitComplete WaitPolicy = "complete"
	// WaitStarted waits until the object's controller began.
	WaitStarted WaitPolicy = "started"
	// WaitNone doesn't wait.
	WaitNone WaitPolicy = "none"
)

// Manifest is one object as the release wants it.
type Manifest struct {
	// Object is normalised: stringData is folded into data, there is no
	// status, creationTimestamp or managedFields, and no rules beside an
	// aggregationRule; empty lists and maps are kept. It must not be changed.
	Object *unstructured.Unstructured
	// JSON is the canonical JSON of Object: what is sent to the server.
	JSON []byte
	// GVK is the object's group, version and kind.
	GVK schema.GroupVersionKind
	// ID is the object's identity.
	ID ObjectID

	// File is the file's name within the payload; Document counts from 1
	// within it and Line is the document's first line.
	File           string
	Document, Line int
	// RunLevel and Component come from the file's name, 0000_<run
	// level>_<component>_<rest>.yaml. A name of another form has run level -1
	// and no component.
	RunLevel  int
	Component string
	// Hash is the SHA-256 of JSON.
	Hash [sha256.Size]byte

	// CreateOnly objects are created when absent and never updated.
	CreateOnly bool
	// Delete manifests name an object to be deleted.
	Delete bool
	// Replace allows to delete and create the object anew when an immutable
	// field changed.
	Replace bool
	// ForceFields insists on fields that another controller contests
	// (lockstep.dev/ssa: force).
	ForceFields bool
	// RollbackFirst moves the object before all levels of a roll back; NodeOS
	// objects have it unless they say otherwise.
	RollbackFirst bool
	// PruneConfirmed allows pruning of kinds that are kept otherwise.
	PruneConfirmed bool
	// IgnoreFields are JSON pointers of fields that are left to others.
	IgnoreFields []string
	// Health is a CEL expression that decides levelness, or "".
	Health string
	// Wait is the wait policy; "" means WaitComplete.
	Wait WaitPolicy
	// Versions are what a ClusterOperator must report to be level: the version
	// of each operand by its name, from the manifest's status.versions, which
	// isn't applied. It is nil for all other kinds.
	Versions map[string]string
}

// NewManifest makes the manifest of one object, normalised and with its
// annotations evaluated. It copies obj. File, place and run level are left
// empty; RunLevel is -1.
func NewManifest(obj *unstructured.Unstructured) (Manifest, error) {
	if obj == nil || obj.Object == nil {
		return Manifest{}, &LoadError{Kind: ReasonInvalid, Message: "the object is empty"}
	}
	var b builder
	// DeepCopy panics at a value that has no form in JSON, such as an int.
	if err := b.canonical(obj.Object); err != nil {
		return Manifest{}, err
	}
	made, err := b.build(obj.DeepCopy().Object)
	if err != nil {
		return Manifest{}, err
	}
	return made.manifest, nil
}

// built is a manifest and what only a load wants to know of it.
type built struct {
	manifest Manifest
	// raw is the hash of the object as it was written: what a version hash is
	// made of, so that it doesn't change with our normalisation.
	raw [sha256.Size]byte
	// badAnnotations says that an annotation isn't a string.
	badAnnotations bool
}

// builder makes manifests and reuses the room for their canonical form.
type builder struct{ scratch []byte }

// build owns content. On an error the result has what was found so far.
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

// canonical leaves the canonical form of content in scratch.
func (b *builder) canonical(content map[string]any) (err error) {
	b.scratch, err = appendCanonical(b.scratch[:0], content)
	if err == nil && len(b.scratch) > maxDocument {
		err = &LoadError{Kind: ReasonLimit, Message: fmt.Sprintf("%d bytes as JSON, at most %d are allowed", len(b.scratch), maxDocument)}
	}
	return err
}

// identify reads apiVersion, kind, name and namespace.
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
		return &LoadError{Kind: ReasonInvalid, Message: "the document has no apiVersion or no kind; each manifest needs both"}
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("apiVersion %q isn't of the form group/version", apiVersion)}
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
		return &LoadError{Kind: ReasonInvalid, Message: kind + " has no metadata.name; generated names can't be kept level"}
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
		return "", &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("%s is a %s, want a string: put it in quotes", key, typeName(v))}
	}
}

// typeName names the JSON type of v.
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

// IsJob reports whether the object is a batch Job, which is a barrier in its
// component.
func (id ObjectID) IsJob() bool { return id.GroupKind() == kinds.Job }

// GroupKind returns the kind without its version.
func (id ObjectID) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: id.Group, Kind: id.Kind}
}

// operandVersions reads what a ClusterOperator's manifest wants reported. An
// entry that isn't of the form is left out, as CVO's typed decoder does.
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
