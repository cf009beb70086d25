// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import "slices"

// Selection selects manifests of a payload.
type Selection struct {
	// Profile is the include profile, "" for none.
	Profile string `json:"profile,omitempty"`
	// FeatureSet is the feature set; "" and Default mean the default one.
	FeatureSet string `json:"featureSet,omitempty"`
	// FeatureGates are the enabled gates. They are evaluated only if
	// EvaluateGates is set, since CVO clusters have more gates than they declare.
	FeatureGates  []string `json:"featureGates,omitempty"`
	EvaluateGates bool     `json:"evaluateGates,omitempty"`
	// Baseline is one of Baselines; Capabilities are enabled in addition.
	Baseline     string   `json:"baseline,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`
}

// Equal reports whether both selections are equal.
func (s Selection) Equal(other Selection) bool {
	return s.Profile == other.Profile && s.FeatureSet == other.FeatureSet &&
		s.EvaluateGates == other.EvaluateGates && s.Baseline == other.Baseline &&
		slices.Equal(s.FeatureGates, other.FeatureGates) && slices.Equal(s.Capabilities, other.Capabilities)
}
