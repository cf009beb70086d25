// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package crd embeds the CustomResourceDefinitions of the declared kinds, as
// generated from the Go types in config/v1alpha1 (`make generate`). Programs use
// them to install the CRDs, to validate documents against their schemas and to
// compare them with the CRDs of the cluster.
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

// FS returns the CRDs as files, one per kind, named lockstep.dev_PLURAL.yaml.
func FS() fs.FS { return files }

// CRDs returns the CRDs, sorted by plural name. Each call returns new values. An
// error means that an embedded file is invalid.
func CRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, fmt.Errorf("list the embedded CRDs: %w", err)
	}
	crds := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(entries))
	for _, entry := range entries {
		data, err := fs.ReadFile(files, entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read the embedded CRD %s: %w", entry.Name(), err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			return nil, fmt.Errorf("decode the embedded CRD %s: %w", entry.Name(), err)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}
