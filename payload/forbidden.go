// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"slices"
	"strings"
)

// Namespace is the namespace of the reconciler and its custom resources.
const Namespace = "lockstep-system"

// ownPrefix is the name prefix of Lockstep's cluster-scoped objects.
const ownPrefix = "lockstep-"

// forbidden enforces trust boundary T1: it returns why a payload may not contain
// the object, or "". It covers manifests that apply or delete, and items of
// lists.
//
// A product under selfUpdate may contain Lockstep's own CRDs, RBAC and
// Deployment. The only kind of group lockstep.dev allowed in any product is
// NodeOS, since TrustPolicy, GitSource and Host configure trust.
func forbidden(content map[string]any, selfUpdate bool) string {
	group, kind := groupKind(content)
	metadata, _ := content["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	namespace, _ := metadata["namespace"].(string)

	if strings.EqualFold(group, Group) {
		if kind == KindNodeOS {
			return ""
		}
		return fmt.Sprintf("%s of group %s configures trust; a payload may contain only %s of this group", kind, Group, KindNodeOS)
	}
	if reason := forbiddenItems(content, selfUpdate); reason != "" {
		return reason
	}
	if selfUpdate {
		return ""
	}
	switch {
	case namespace == Namespace, group == "" && kind == "Namespace" && name == Namespace:
		return fmt.Sprintf("%s %q is in namespace %s, which is reserved for Lockstep", kind, name, Namespace)
	case group == "apiextensions.k8s.io" && ownCRD(content, name):
		return fmt.Sprintf("CustomResourceDefinition %q is in group %s, which is reserved for Lockstep", name, Group)
	case group == "apiregistration.k8s.io" && ownAPIService(content, name):
		return fmt.Sprintf("APIService %q serves group %s, which is reserved for Lockstep", name, Group)
	case protectedGroup(group) && strings.HasPrefix(name, ownPrefix):
		return fmt.Sprintf("%s %q: names in group %s with prefix %q are reserved for Lockstep", kind, name, group, ownPrefix)
	case strings.HasSuffix(kind, "Binding"):
		return forbiddenSubject(content, kind, name)
	}
	return ""
}

// forbiddenItems checks the items of lists of any kind.
func forbiddenItems(content map[string]any, selfUpdate bool) string {
	items, _ := content["items"].([]any)
	for _, item := range items {
		if object, ok := item.(map[string]any); ok && object["kind"] != nil {
			if reason := forbidden(object, selfUpdate); reason != "" {
				return reason
			}
		}
	}
	return ""
}

// protectedGroup reports whether objects of the group control authorization or
// admission.
func protectedGroup(group string) bool {
	return slices.Contains([]string{
		"rbac.authorization.k8s.io", "authorization.openshift.io", "admissionregistration.k8s.io",
	}, group)
}

func ownCRD(content map[string]any, name string) bool {
	spec, _ := content["spec"].(map[string]any)
	return spec["group"] == Group || strings.HasSuffix(name, "."+Group)
}

func ownAPIService(content map[string]any, name string) bool {
	spec, _ := content["spec"].(map[string]any)
	return spec["group"] == Group || strings.HasSuffix(name, "."+Group)
}

// forbiddenSubject rejects bindings to Lockstep's service accounts, by name or by
// their Kubernetes groups.
func forbiddenSubject(content map[string]any, kind, name string) string {
	subjects, _ := content["subjects"].([]any)
	for _, entry := range subjects {
		subject, _ := entry.(map[string]any)
		subjectName, _ := subject["name"].(string)
		accounts := "system:serviceaccounts:" + Namespace
		if subject["namespace"] == Namespace || subjectName == accounts ||
			strings.HasPrefix(subjectName, "system:serviceaccount:"+Namespace+":") {
			return fmt.Sprintf("%s %q binds a subject in namespace %s, which is reserved for Lockstep", kind, name, Namespace)
		}
	}
	return ""
}

func groupKind(content map[string]any) (group, kind string) {
	apiVersion, _ := content["apiVersion"].(string)
	if i := strings.LastIndexByte(apiVersion, '/'); i >= 0 {
		group = apiVersion[:i]
	}
	kind, _ = content["kind"].(string)
	return group, kind
}
