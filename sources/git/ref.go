// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// Ref selects a revision of a repository. Exactly one field is set.
type Ref struct {
	Branch string // exactly refs/heads/<Branch>, even if a tag has that name
	Tag    string // exactly refs/tags/<Tag>
	Semver string // the highest tag in the range, for example ">=1.4.0 <2.0.0"; a leading v of a tag is allowed; pre-releases only if the range contains one
	Commit string // 40 hexadecimal digits
	Name   string // a full reference name, for example refs/pull/420/head
}

func (r Ref) check() error {
	n := 0
	for _, f := range []string{r.Branch, r.Tag, r.Semver, r.Commit, r.Name} {
		if f != "" {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("ref has %d of branch, tag, semver, commit and name; set exactly one", n)
	}
	switch {
	case r.Commit != "":
		if raw, err := hex.DecodeString(r.Commit); err != nil || len(raw) != 20 || r.Commit != strings.ToLower(r.Commit) {
			return fmt.Errorf("ref.commit %q: want 40 lower-case hexadecimal digits", sanitize.Line(r.Commit))
		}
	case r.Semver != "":
		if _, err := semver.ParseRange(r.Semver); err != nil {
			return fmt.Errorf("ref.semver %q: %w", sanitize.Line(r.Semver), err)
		}
	case strings.HasPrefix(r.fullName().String(), "refs/heads/"+StatusBranchPrefix):
		return fmt.Errorf("ref %q is a status branch, which can't be a source", sanitize.Line(r.fullName().String()))
	default:
		name := r.fullName()
		if err := name.Validate(); err != nil || !strings.HasPrefix(name.String(), "refs/") || strings.Contains(name.String(), "*") {
			return fmt.Errorf("ref %q isn't a valid reference name; it must start with refs/", sanitize.Line(name.String()))
		}
	}
	return nil
}

// fullName returns the full reference name; "" for semver and commit.
func (r Ref) fullName() plumbing.ReferenceName {
	switch {
	case r.Branch != "":
		return plumbing.ReferenceName("refs/heads/" + r.Branch)
	case r.Tag != "":
		return plumbing.ReferenceName("refs/tags/" + r.Tag)
	default:
		return plumbing.ReferenceName(r.Name)
	}
}

// String returns the ref for messages.
func (r Ref) String() string {
	switch {
	case r.Commit != "":
		return "commit " + r.Commit
	case r.Semver != "":
		return "tags " + r.Semver
	default:
		return r.fullName().String()
	}
}

// target is the declared ref as resolved by the server.
type target struct {
	label  string        // Revision.Ref
	object plumbing.Hash // the object to request: a commit, or an annotated tag
	commit plumbing.Hash // the peeled commit if advertised, else zero
}

// resolve finds the declared ref in the advertised references.
func (r Ref) resolve(adv *packp.AdvRefs) (target, error) {
	if r.Commit != "" {
		h := plumbing.NewHash(r.Commit)
		return target{object: h, commit: h}, nil
	}
	if r.Semver != "" {
		return r.highest(adv)
	}
	name := r.fullName().String()
	h, ok := adv.References[name]
	if !ok {
		return target{}, refuse(ReasonRefNotFound, fmt.Sprintf(
			"%s doesn't exist on the server; the accepted revision is still reconciled. Restore it, or change spec.ref", sanitize.Line(name)))
	}
	label := r.Branch + r.Tag + r.Name
	return target{label: label, object: h, commit: adv.Peeled[name]}, nil
}

// highest returns the tag of the highest version in the range; of several tags for
// one version, the first by name.
func (r Ref) highest(adv *packp.AdvRefs) (target, error) {
	inRange, err := semver.ParseRange(r.Semver)
	if err != nil {
		return target{}, wrap(ReasonInvalid, "ref.semver", err)
	}
	type candidate struct {
		tag     string
		version semver.Version
	}
	var found []candidate
	for name := range adv.References {
		tag, ok := strings.CutPrefix(name, "refs/tags/")
		if !ok {
			continue
		}
		v, err := semver.Parse(strings.TrimPrefix(tag, "v"))
		if err != nil || !inRange(v) || (len(v.Pre) > 0 && !strings.Contains(r.Semver, "-")) {
			continue // 2.0.0-rc.1 is below 2.0.0, but <2.0.0 must not select it
		}
		found = append(found, candidate{tag, v})
	}
	if len(found) == 0 {
		return target{}, refuse(ReasonRefNotFound, fmt.Sprintf("no tag on the server matches %q", sanitize.Line(r.Semver)))
	}
	best := slices.MaxFunc(found, func(a, b candidate) int {
		if c := a.version.Compare(b.version); c != 0 {
			return c
		}
		return strings.Compare(b.tag, a.tag)
	})
	name := "refs/tags/" + best.tag
	return target{label: best.tag, object: adv.References[name], commit: adv.Peeled[name]}, nil
}
