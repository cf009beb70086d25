// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/verify"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

// waive marks the violations that waivers in the spec accept.
func (c *checks) waive(spec *v1alpha1.ClusterReleaseSpec, desired worker.Desired, target *payload.Payload, current worker.Current, violations []precondition.Violation) []precondition.Violation {
	if !precondition.Blocks(violations) {
		return violations
	}
	t := trust.WaiverTarget{
		Cluster: c.clusterName(), Product: target.Product, Version: target.Version, Digest: target.Digest,
		PreviouslyAccepted: current.Accepted != nil && current.Accepted.Digest != "" && current.Accepted.Digest == target.Digest,
	}
	return withWaivers(violations, evaluateWaivers(c.policy(), t, spec.Waivers, c.now()), waiveCommand(desired, t.Cluster))
}

// waiverResult is an evaluated waiver; refused is why it doesn't count.
type waiverResult struct {
	waiver  trust.Waiver
	signers []trust.Signer
	refused error
}

// evaluateWaivers evaluates each waiver of a spec on its own.
func evaluateWaivers(doc *trust.Document, t trust.WaiverTarget, waivers []v1alpha1.Waiver, now time.Time) []waiverResult {
	var out []waiverResult
	for _, w := range waivers {
		var r waiverResult
		r.waiver, r.signers, r.refused = verify.Waiver(doc, t, []byte(w.Envelope), precondition.Waivable(), now)
		out = append(out, r)
	}
	return out
}

// concerns reports whether the waiver's result belongs to a violation. A waiver
// without readable checks could be about any.
func (r *waiverResult) concerns(name string) bool {
	return slices.Contains(r.waiver.Checks, name) || r.refused != nil && len(r.waiver.Checks) == 0
}

// text returns who accepted the risk, why and until when.
func (r *waiverResult) text() string {
	names := make([]string, 0, len(r.signers))
	for _, s := range r.signers {
		names = append(names, s.String())
	}
	return fmt.Sprintf("waived until %s by %s: %s", r.waiver.Expires.UTC().Format(time.RFC3339), strings.Join(names, ", "), sanitize.Line(r.waiver.Reason))
}

// withWaivers marks waived violations and adds to the others why waivers didn't
// count and the command that makes one.
func withWaivers(violations []precondition.Violation, results []waiverResult, command string) []precondition.Violation {
	waivable := precondition.Waivable()
	out := slices.Clone(violations)
	for i := range out {
		v := &out[i]
		if !v.Blocking {
			continue
		}
		var refusals []string
		for j := range results {
			r := &results[j]
			if !r.concerns(v.Name) {
				continue
			}
			if r.refused == nil {
				v.Waived = true
				v.Message += " (" + r.text() + ")"
				break
			}
			refusals = append(refusals, fmt.Sprintf("spec.waivers[%d]: %s", j, sanitize.Line(r.refused.Error())))
		}
		if v.Waived {
			continue
		}
		if slices.Contains(waivable, v.Name) {
			v.Message += "; to accept the risk: " + command + " --check " + v.Name
		}
		if len(refusals) > 0 {
			v.Message += "; refused waivers: " + strings.Join(refusals, "; ")
		}
	}
	return out
}

// waiveCommand returns the command that makes a waiver of the release, without its
// checks.
func waiveCommand(d worker.Desired, cluster string) string {
	release := d.Image
	if release == "" {
		release = d.Path
	}
	if cluster == "" {
		cluster = "CLUSTER"
	}
	return "lockstep release waive " + sanitize.Line(release) + " --cluster " + sanitize.Line(cluster)
}
