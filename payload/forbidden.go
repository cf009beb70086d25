// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"slices"
	"strings"
)

// Namespace is where the reconciler and its kinds live.
const Namespace = "lockstep-system"

// ownPrefix begins the names of our cluster-scoped objects.
const ownPrefix = "lockstep-"

// forbidden holds wall 1: it returns why a payload may not carry the object,
// or "". It holds for apply and delete manifests alike, and for items of
// lists that an API server would unpack.
//
// A product under selfUpdate may carry Lockstep's own CRDs, RBAC and
// Deployment, but no product may carry objects of our group besides NodeOS:
// a TrustPolicy, GitSource or Host decides what is trusted.
func forbidden(content map[string]any, selfUpdate bool) string {
	group, kind := groupKind(content)
	metadata, _ := content["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	namespace, _ := metadata["namespace"].(string)

	if strings.EqualFold(group, Group) {
		if kind == KindNodeOS {
			return ""
		}
		return fmt.Sprintf("%s of group %s decides what is trusted; a payload may carry only %s of that group", kind, Group, KindNodeOS)
	}
	if reason := forbiddenItems(content, selfUpdate); reason != "" {
		return reason
	}
	if selfUpdate {
		return ""
	}
	switch {
	case namespace == Namespace, group == "" && kind == "Namespace" && name == Namespace:
		return fmt.Sprintf("%s %q is in namespace %s, which belongs to Lockstep", kind, name, Namespace)
	case group == "apiextensions.k8s.io" && ownCRD(content, name):
		return fmt.Sprintf("CustomResourceDefinition %q is of group %s", name, Group)
	case group == "apiregistration.k8s.io" && ownAPIService(content, name):
		return fmt.Sprintf("APIService %q would serve group %s", name, Group)
	case protectedGroup(group) && strings.HasPrefix(name, ownPrefix):
		return fmt.Sprintf("%s %q: names of group %s that begin with %q belong to Lockstep", kind, name, group, ownPrefix)
	case strings.HasSuffix(kind, "Binding"):
		return forbiddenSubject(content, kind, name)
	}
	return ""
}

// forbiddenItems looks into lists of any kind.
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

// protectedGroup reports whether objects of the group grant or admit.
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

// forbiddenSubject refuses bindings to our service accounts, by name or by
// the groups that Kubernetes puts them in.
func forbiddenSubject(content map[string]any, kind, name string) string {
	subjects, _ := content["subjects"].([]any)
	for _, entry := range subjects {
		subject, _ := entry.(map[string]any)
		subjectName, _ := subject["name"].(string)
		accounts := "system:serviceaccounts:" + Namespace
		if subject["namespace"] == Namespace || subjectName == accounts ||
			strings.HasPrefix(subjectName, "system:serviceaccount:"+Namespace+":") {
			return fmt.Sprintf("%s %q binds a subject of namespace %s, which belongs to Lockstep", kind, name, Namespace)
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
