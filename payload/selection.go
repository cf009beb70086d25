// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import "slices"

// Selection says which manifests of a payload a cluster wants.
type Selection struct {
	// Profile is the include profile, "" for none.
	Profile string `json:"profile,omitempty"`
	// FeatureSet is "" or Default for the default one.
	FeatureSet string `json:"featureSet,omitempty"`
	// FeatureGates that are enabled; they are compared with the manifests'
	// only when EvaluateGates is set, as a CVO cluster knows more gates than
	// it declares.
	FeatureGates  []string `json:"featureGates,omitempty"`
	EvaluateGates bool     `json:"evaluateGates,omitempty"`
	// Baseline is one of Baselines; Capabilities are enabled besides it.
	Baseline     string   `json:"baseline,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`
}

// Equal reports whether both select the same.
func (s Selection) Equal(other Selection) bool {
	return s.Profile == other.Profile && s.FeatureSet == other.FeatureSet &&
		s.EvaluateGates == other.EvaluateGates && s.Baseline == other.Baseline &&
		slices.Equal(s.FeatureGates, other.FeatureGates) && slices.Equal(s.Capabilities, other.Capabilities)
}
