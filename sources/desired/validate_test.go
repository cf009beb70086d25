// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
)

func TestASpecInTheClusterIsValidatedAsADocumentIs(t *testing.T) {
	d, err := NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	valid := func() v1alpha1.ClusterReleaseSpec {
		return v1alpha1.ClusterReleaseSpec{
			Desired:  v1alpha1.DesiredRelease{Version: "1.0.0", Image: "r.example.com/platform@sha256:" + strings.Repeat("a", 64)},
			Interval: metav1.Duration{Duration: 10 * time.Minute}, Timeout: metav1.Duration{Duration: time.Hour},
			DeletionPolicy: v1alpha1.DeletionOrphan,
		}
	}
	for want, change := range map[string]func(*v1alpha1.ClusterReleaseSpec){
		"": func(*v1alpha1.ClusterReleaseSpec) {},
		"spec.desired: Invalid value: exactly one of image and path must be set": func(s *v1alpha1.ClusterReleaseSpec) { s.Desired.Path = "releases/1.0.0" },
		"interval must be between 10s and 24h":                                   func(s *v1alpha1.ClusterReleaseSpec) { s.Interval.Duration = time.Second },
		"spec.desired.image":                                                     func(s *v1alpha1.ClusterReleaseSpec) { s.Desired.Image = "r.example.com/platform:latest" },
	} {
		s := valid()
		change(&s)
		err := d.ValidateSpec(t.Context(), v1alpha1.KindClusterRelease, "platform", s)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "ClusterRelease/platform: ")) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := d.ValidateSpec(t.Context(), "Deployment", "web", nil); err == nil {
		t.Error("a kind that can't be declared is valid")
	}
}
