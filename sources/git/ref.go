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

// Ref says which state of a repository is declared. Exactly one field is set.
type Ref struct {
	Branch string // exactly refs/heads/<Branch>, even where a tag has that name
	Tag    string // exactly refs/tags/<Tag>
	Semver string // the highest tag in the range, for example ">=1.4.0 <2.0.0"; a leading v of a tag is allowed; pre-releases only where the range names one
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
		return fmt.Errorf("ref %q is a status branch; nothing is ever read from those", sanitize.Line(r.fullName().String()))
	default:
		name := r.fullName()
		if err := name.Validate(); err != nil || !strings.HasPrefix(name.String(), "refs/") || strings.Contains(name.String(), "*") {
			return fmt.Errorf("ref %q isn't a valid reference name; a name starts with refs/", sanitize.Line(name.String()))
		}
	}
	return nil
}

// fullName is the one reference to look at; "" for semver and commit.
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

// String says what is looked at, for messages.
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

// target is what the server says the declared ref is.
type target struct {
	label  string        // Revision.Ref
	object plumbing.Hash // what to ask for: a commit, or an annotated tag
	commit plumbing.Hash // the peeled commit where the server told; zero if not known yet
}

// resolve finds the declared ref among what the server advertised.
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
			"%s isn't on the server (any more); the accepted revision stays. Restore it, or change spec.ref", sanitize.Line(name)))
	}
	label := r.Branch + r.Tag + r.Name
	return target{label: label, object: h, commit: adv.Peeled[name]}, nil
}

// highest picks the highest version in the range; of several spellings of one
// version the first by name, so that the choice is stable.
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
			continue // 2.0.0-rc.1 is below 2.0.0, but nobody who writes <2.0.0 means it
		}
		found = append(found, candidate{tag, v})
	}
	if len(found) == 0 {
		return target{}, refuse(ReasonRefNotFound, fmt.Sprintf("no tag on the server is a version in %q", sanitize.Line(r.Semver)))
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
