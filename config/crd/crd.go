// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package crd carries the CustomResourceDefinitions of the declared kinds, as
// they are generated from the Go types in config/v1alpha1 (`make generate`), so
// that a program can install them, validate documents against their schemas and
// tell whether the cluster's are its own. It leaves the installing to others.
package crd

import (
	"embed"
	"fmt"
	"io/fs"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed lockstep.dev_*.yaml
var files embed.FS

// FS returns the definitions as files, one a kind, named lockstep.dev_PLURAL.yaml.
func FS() fs.FS { return files }

// CRDs returns the definitions, sorted by plural name. Each call returns
// values of its own. An error means that the program was built from a broken
// tree.
func CRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, fmt.Errorf("list the embedded definitions: %w", err)
	}
	definitions := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(entries))
	for _, entry := range entries {
		data, err := fs.ReadFile(files, entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read the embedded definition %s: %w", entry.Name(), err)
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, definition); err != nil {
			return nil, fmt.Errorf("decode the embedded definition %s: %w", entry.Name(), err)
		}
		definitions = append(definitions, definition)
	}
	return definitions, nil
}
