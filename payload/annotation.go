// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/payload/kinds"
)

// Group is the API group of Lockstep's kinds and the prefix of its annotations.
const Group = "lockstep.dev"

// KindNodeOS is the only kind of the group allowed in a payload.
const KindNodeOS = "NodeOS"

// The annotations of Lockstep on manifests.
const (
	AnnotationCreateOnly    = "lockstep.dev/create-only"
	AnnotationDelete        = "lockstep.dev/delete"
	AnnotationProfile       = "lockstep.dev/profile"
	AnnotationFeatureSet    = "lockstep.dev/feature-set"
	AnnotationCapability    = "lockstep.dev/capability"
	AnnotationHealth        = "lockstep.dev/health"
	AnnotationWait          = "lockstep.dev/wait"
	AnnotationPrune         = "lockstep.dev/prune"
	AnnotationReplace       = "lockstep.dev/replace"
	AnnotationSSA           = "lockstep.dev/ssa"
	AnnotationIgnoreFields  = "lockstep.dev/ignore-fields"
	AnnotationRollbackFirst = "lockstep.dev/rollback-first"
	AnnotationAdoptFrom     = "lockstep.dev/adopt-from"
)

// The annotations of CVO payloads (cluster-version-operator,
// docs/dev/operators.md).
const (
	cvoCreateOnly    = "release.openshift.io/create-only"
	cvoDelete        = "release.openshift.io/delete"
	cvoFeatureSet    = "release.openshift.io/feature-set"
	cvoFeatureGate   = "release.openshift.io/feature-gate"
	cvoMajorVersion  = "release.openshift.io/major-version"
	cvoCapability    = "capability.openshift.io/name"
	cvoIncludePrefix = "include.release.openshift.io/"
	cvoExcludePrefix = "exclude.release.openshift.io/"
	cvoInjectProxy   = "config.openshift.io/inject-proxy"
	cvoInjectTLS     = "config.openshift.io/inject-tls"
)

// maxIgnoreFields limits the JSON pointers of one manifest.
const maxIgnoreFields = 32

// setter returns the function that evaluates a Lockstep annotation, or nil for an
// unknown key.
func (m *Manifest) setter(key string) func(value string) error {
	switch key {
	case AnnotationCreateOnly:
		return flag(&m.CreateOnly)
	case AnnotationDelete:
		return flag(&m.Delete)
	case AnnotationReplace:
		return flag(&m.Replace)
	case AnnotationRollbackFirst:
		return flag(&m.RollbackFirst)
	case AnnotationPrune:
		return m.setPrune
	case AnnotationSSA:
		return word(&m.ForceFields, "force")
	case AnnotationWait:
		return m.setWait
	case AnnotationHealth:
		return m.setHealth
	case AnnotationIgnoreFields:
		return m.setIgnoreFields
	case AnnotationProfile, AnnotationFeatureSet, AnnotationCapability, AnnotationAdoptFrom:
		return nonEmpty
	default:
		return nil
	}
}

// annotate evaluates the annotations of m.Object. notString is true if the value
// of one isn't a string.
func (m *Manifest) annotate() (notString bool, err error) {
	m.RollbackFirst = m.ID.Group == Group && m.ID.Kind == KindNodeOS
	for key, value := range annotationsOf(m.Object.Object) {
		text, isString := value.(string)
		if !isString {
			return true, &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("annotation %s is a %s, must be a string; quote it", key, typeName(value))}
		}
		if err := m.annotateOne(key, text); err != nil {
			return false, err
		}
	}
	if m.Health != "" && m.ID.GroupKind() == kinds.Secret {
		return false, &LoadError{Kind: ReasonInvalid, Message: "annotation " + AnnotationHealth + ": health rules can't read Secrets, since status would show their content; remove the annotation"}
	}
	if m.Delete && m.Replace {
		return false, &LoadError{Kind: ReasonInvalid, Message: "the delete and replace annotations are mutually exclusive"}
	}
	// CVO manifests may have both annotations; deletion wins there as well.
	m.CreateOnly = m.CreateOnly && !m.Delete
	return false, nil
}

func (m *Manifest) annotateOne(key, value string) error {
	switch {
	case key == cvoCreateOnly:
		m.CreateOnly = value == "true"
		return nil
	case key == cvoDelete:
		if value != "true" {
			return &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf(`annotation %s is %q, must be "true"`, key, value)}
		}
		m.Delete = true
		return nil
	case !strings.HasPrefix(key, Group+"/"):
		return nil
	}
	set := m.setter(key)
	if set == nil {
		return &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("unknown annotation %s: only documented lockstep.dev annotations are allowed", key)}
	}
	if err := set(value); err != nil {
		return &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("annotation %s: %s", key, err)}
	}
	return nil
}

func (m *Manifest) setPrune(value string) error {
	switch value {
	case "confirmed":
		m.PruneConfirmed = true
	case "disabled":
		m.PruneDisabled = true
	default:
		return fmt.Errorf("value %q, must be confirmed or disabled", value)
	}
	return nil
}

func (m *Manifest) setWait(value string) error {
	m.Wait = WaitPolicy(value)
	if !slices.Contains([]WaitPolicy{WaitComplete, WaitStarted, WaitNone}, m.Wait) {
		return fmt.Errorf("value %q, must be complete, started or none", value)
	}
	return nil
}

func (m *Manifest) setHealth(value string) error {
	m.Health = strings.TrimSpace(value)
	return nonEmpty(value)
}

func (m *Manifest) setIgnoreFields(value string) error {
	pointers, err := pointerList(value)
	if err != nil {
		return err
	}
	if len(pointers) == 0 || len(pointers) > maxIgnoreFields {
		return fmt.Errorf("%d JSON pointers, must be 1 to %d", len(pointers), maxIgnoreFields)
	}
	for _, p := range pointers {
		if !strings.HasPrefix(p, "/") || len(p) < 2 {
			return fmt.Errorf("%q isn't a JSON pointer (RFC 6901) such as /spec/replicas", p)
		}
	}
	m.IgnoreFields = pointers
	return nil
}

// pointerList parses a JSON list, or a list separated by commas and whitespace.
// Pointers that contain a separator must use the JSON form.
func pointerList(value string) ([]string, error) {
	if !strings.HasPrefix(strings.TrimSpace(value), "[") {
		return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == '\n' || r == ' ' }), nil
	}
	var list []string
	if err := json.Unmarshal([]byte(value), &list); err != nil {
		return nil, fmt.Errorf(`invalid JSON list of strings, such as ["/spec/replicas"]: %s`, sanitize.Line(err.Error()))
	}
	return list, nil
}

// flag sets dst from "true" or "false" and rejects other values.
func flag(dst *bool) func(string) error {
	return func(value string) error {
		if value != "true" && value != "false" {
			return fmt.Errorf(`value %q, must be "true" or "false"`, value)
		}
		*dst = value == "true"
		return nil
	}
}

// word sets dst if the value is the only allowed one.
func word(dst *bool, want string) func(string) error {
	return func(value string) error {
		if value != want {
			return fmt.Errorf("value %q, must be %q", value, want)
		}
		*dst = true
		return nil
	}
}

func nonEmpty(value string) error {
	if strings.TrimSpace(value) == "" {
		return errors.New("the value is empty")
	}
	return nil
}

// annotationsOf returns the annotations with unconverted values, or nil.
func annotationsOf(content map[string]any) map[string]any {
	metadata, _ := content["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	return annotations
}
