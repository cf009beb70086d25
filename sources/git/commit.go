// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/hiddeco/sshsig"

	"github.com/lockstep-dev/lockstep/config/files"
	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/sources"
)

// maxPublish limits the files of a status commit together, in bytes.
const maxPublish = 8 << 20

// builtTree is a flat tree with all its objects.
type builtTree struct {
	root    plumbing.Hash
	objects []plumbing.EncodedObject
}

// built is an encoded commit.
type built struct {
	hash   plumbing.Hash
	tree   plumbing.Hash
	object plumbing.EncodedObject
}

func object(kind plumbing.ObjectType, data []byte) plumbing.EncodedObject {
	o := &plumbing.MemoryObject{}
	o.SetType(kind)
	o.SetSize(int64(len(data)))
	_, _ = o.Write(data) // writes to memory and can't fail
	return o
}

func buildTree(content map[string][]byte) (builtTree, error) {
	var out builtTree
	var raw bytes.Buffer
	total := 0
	for _, name := range slices.Sorted(maps.Keys(content)) {
		if err := files.CheckElement(name); err != nil {
			return builtTree{}, wrap(ReasonInvalid, "status file", err)
		}
		if total += len(content[name]); total > maxPublish {
			return builtTree{}, refuse(ReasonLimitExceeded, fmt.Sprintf("status files have more than %d bytes", maxPublish))
		}
		blob := object(plumbing.BlobObject, content[name])
		h := blob.Hash()
		raw.WriteString(modeFile + " " + name + "\x00")
		raw.Write(h[:])
		out.objects = append(out.objects, blob)
	}
	root := object(plumbing.TreeObject, raw.Bytes())
	out.root = root.Hash()
	out.objects = append(out.objects, root)
	return out, nil
}

var trailerKey = regexp.MustCompile(`^Lockstep-[A-Z][A-Za-z]*(-[A-Z][A-Za-z]*)*$`)

// message returns the commit message. Sanitized values contain no line breaks, so
// they can't forge trailers.
func message(c sources.StatusCommit) (string, error) {
	var b strings.Builder
	s := sanitize.Line(c.Subject)
	if s == "" {
		return "", refuse(ReasonInvalid, "a status commit requires a subject")
	}
	b.WriteString(s + "\n")
	for i, t := range c.Trailers {
		if !trailerKey.MatchString(t.Key) {
			return "", refuse(ReasonInvalid, fmt.Sprintf("trailer key %q must start with Lockstep-", sanitize.Line(t.Key)))
		}
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString(t.Key + ": " + sanitize.Line(t.Value) + "\n")
	}
	return b.String(), nil
}

// build encodes the commit and signs it if there is a key.
func (p *Publisher) build(ctx context.Context, c sources.StatusCommit, tree builtTree, parent plumbing.Hash) (built, error) {
	text, err := message(c)
	if err != nil {
		return built{}, err
	}
	ident := fmt.Sprintf("%s <%s> %d +0000", identPart(p.cfg.Name), identPart(p.cfg.Email), p.cfg.Now().Unix())
	head := "tree " + tree.root.String() + "\n"
	if !parent.IsZero() {
		head += "parent " + parent.String() + "\n"
	}
	head += "author " + ident + "\ncommitter " + ident + "\n"
	sig := ""
	if p.cfg.SigningKey != nil {
		key, err := p.cfg.SigningKey(ctx)
		if err != nil {
			return built{}, classify("load signing key", err)
		}
		armor, err := signSSH(key, strings.NewReader(head+"\n"+text))
		if err != nil {
			return built{}, err
		}
		sig = "gpgsig " + strings.ReplaceAll(strings.TrimSpace(string(armor)), "\n", "\n ") + "\n"
	}
	o := object(plumbing.CommitObject, []byte(head+sig+"\n"+text))
	return built{hash: o.Hash(), tree: tree.root, object: o}, nil
}

// signSSH signs like git commit -S with gpg.format=ssh.
func signSSH(key []byte, message io.Reader) ([]byte, error) {
	signer, err := parseIdentity(key, "")
	if err != nil {
		return nil, err
	}
	sig, err := sshsig.Sign(message, signer, sshsig.HashSHA512, sshNamespace)
	if err != nil {
		return nil, wrap(ReasonInvalid, "sign the status commit", err)
	}
	return sshsig.Armor(sig), nil
}

// identPart removes characters that names and addresses of a commit must not
// contain.
func identPart(s string) string {
	s = strings.Map(func(r rune) rune {
		if strings.ContainsRune("<>\n\x00", r) {
			return -1
		}
		return r
	}, sanitize.Line(s))
	return strings.Trim(s, " .,:;'\"\\")
}
