// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/lockstep-dev/lockstep/config/crd"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

// kindSchema is the compiled schema of a kind, with the rules of the API server.
type kindSchema struct {
	structural *structuralschema.Structural
	validator  validation.SchemaCreateValidator
	cel        *schemacel.Validator
}

// compile compiles the schemas of the embedded CRDs.
func compile() (map[string]*kindSchema, error) {
	definitions, err := crd.CRDs()
	if err != nil {
		return nil, err
	}
	out := map[string]*kindSchema{}
	for _, def := range definitions {
		i := slices.IndexFunc(def.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return v.Name == v1alpha1.GroupVersion().Version
		})
		if i < 0 || def.Spec.Versions[i].Schema == nil {
			return nil, fmt.Errorf("CRD %s has no schema for %s", def.Name, v1alpha1.GroupVersion())
		}
		s, err := compileSchema(def.Spec.Versions[i].Schema.OpenAPIV3Schema)
		if err != nil {
			return nil, fmt.Errorf("CRD %s: %w", def.Name, err)
		}
		out[def.Spec.Names.Kind] = s
	}
	return out, nil
}

func compileSchema(props *apiextensionsv1.JSONSchemaProps) (*kindSchema, error) {
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, &internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, err
	}
	return &kindSchema{
		structural: structural, validator: validator,
		cel: schemacel.NewValidator(structural, true, celconfig.PerCallLimit),
	}, nil
}

// complete sets the defaults of the API server.
func (s *kindSchema) complete(object map[string]any) {
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.structural)
	defaulting.Default(object, s.structural)
}

// validate returns the validation errors of the API server.
func (s *kindSchema) validate(ctx context.Context, object map[string]any) field.ErrorList {
	errs := validation.ValidateCustomResource(nil, object, s.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, object)...)
	if len(errs) > 0 {
		return errs // rules may access fields of another type
	}
	celErrs, _ := s.cel.Validate(ctx, nil, s.structural, object, nil, celconfig.RuntimeCELCostBudget)
	return celErrs
}

// unknown reports every field that the schema doesn't define.
func (s *kindSchema) unknown(object map[string]any, report func(fieldPath, meant string)) {
	spec, ok := s.structural.Properties["spec"]
	if !ok {
		return
	}
	walkUnknown("spec", object["spec"], &spec, report)
}

func walkUnknown(at string, value any, s *structuralschema.Structural, report func(fieldPath, meant string)) {
	switch v := value.(type) {
	case map[string]any:
		if s.XPreserveUnknownFields || s.XIntOrString {
			return
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if next, ok := s.Properties[key]; ok {
				walkUnknown(at+"."+key, v[key], &next, report)
			} else if extra := s.AdditionalProperties; extra != nil && extra.Structural != nil {
				walkUnknown(at+"["+key+"]", v[key], extra.Structural, report)
			} else if extra == nil || !extra.Bool {
				report(at+"."+key, nearest(key, slices.Sorted(maps.Keys(s.Properties))))
			}
		}
	case []any:
		if s.Items == nil {
			return
		}
		for i, e := range v {
			walkUnknown(fmt.Sprintf("%s[%d]", at, i), e, s.Items, report)
		}
	}
}
