// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/lockstep-dev/lockstep/sources"
)

const (
	// seenRef is the newest commit whose complete history is in the mirror; only
	// its history is sent as haves.
	seenRef = plumbing.ReferenceName("refs/lockstep/seen")
	// maxObjects limits the objects of one pack.
	maxObjects = 1_000_000
	// maxPacks is the number of packs above which the mirror is recreated; each
	// fetch adds one.
	maxPacks = 64
	// maxHaves limits the haves that are sent to the server.
	maxHaves = 64
	// maxWalk limits a walk over the history.
	maxWalk = 1_000_000
)

// errCorrupt reports missing or damaged objects in the mirror.
var errCorrupt = errors.New("the mirror is damaged")

// mirror is a bare repository on disk with the history of one declared ref. It
// isn't safe for concurrent use.
type mirror struct {
	dir   string
	store *filesystem.Storage
}

// openMirror opens or creates the repository at dir and removes the files of an
// interrupted fetch.
func openMirror(dir string) (*mirror, error) {
	if err := os.MkdirAll(filepath.Join(dir, "objects", "pack"), 0o700); err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(dir, "objects", "pack", "tmp_*"))
	if err != nil {
		return nil, err
	}
	for _, f := range left {
		if err := os.Remove(f); err != nil {
			return nil, err
		}
	}
	m := &mirror{dir: dir}
	m.store = filesystem.NewStorageWithOptions(osfs.New(dir), cache.NewObjectLRU(8*cache.MiByte), filesystem.Options{})
	return m, m.store.Init()
}

// has reports whether the object is in the mirror.
func (m *mirror) has(h plumbing.Hash) bool { return m.store.HasEncodedObject(h) == nil }

// seen returns the newest commit with its complete history; zero if none.
func (m *mirror) seen() plumbing.Hash {
	ref, err := m.store.Reference(seenRef)
	if err != nil {
		return plumbing.ZeroHash
	}
	return ref.Hash()
}

// usage returns the bytes and the number of packs on disk.
func (m *mirror) usage() (size int64, packs int, err error) {
	err = filepath.WalkDir(filepath.Join(m.dir, "objects"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size += info.Size()
		if strings.HasSuffix(name, ".pack") {
			packs++
		}
		return nil
	})
	return size, packs, err
}

// read returns the content of an object of kind, at most limit bytes, and checks
// its hash.
func (m *mirror) read(kind plumbing.ObjectType, h plumbing.Hash, limit int64) (_ []byte, err error) {
	size, err := m.store.EncodedObjectSize(h)
	if err != nil {
		return nil, fmt.Errorf("%w: object %s: %w", errCorrupt, h, err)
	}
	if size > limit {
		return nil, sources.NewLimitError(h.String(), "object has %d bytes; %d are left within the limit", size, limit)
	}
	o, err := m.store.EncodedObject(kind, h)
	if err != nil {
		return nil, fmt.Errorf("%w: %s %s: %w", errCorrupt, kind, h, err)
	}
	r, err := o.Reader()
	if err != nil {
		return nil, fmt.Errorf("%w: %s %s: %w", errCorrupt, kind, h, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil || int64(len(data)) != size {
		return nil, fmt.Errorf("%w: %s %s has %d bytes, but its header declares %d: %w", errCorrupt, kind, h, len(data), size, err)
	}
	if plumbing.ComputeHash(kind, data) != h {
		return nil, fmt.Errorf("%w: the content of %s %s doesn't match its hash", errCorrupt, kind, h)
	}
	return data, nil
}

// commit reads a commit strictly.
func (m *mirror) commit(h plumbing.Hash) (*commit, error) {
	raw, err := m.read(plumbing.CommitObject, h, maxCommit)
	if err != nil {
		return nil, err
	}
	c, err := parseCommit(raw)
	if err != nil {
		return nil, sources.NewTreeError(h.String(), "%v", err)
	}
	return c, nil
}

// peel follows annotated tags to the commit.
func (m *mirror) peel(h plumbing.Hash) (plumbing.Hash, error) {
	for range 4 {
		o, err := m.store.EncodedObject(plumbing.AnyObject, h)
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("%w: object %s: %w", errCorrupt, h, err)
		}
		switch o.Type() {
		case plumbing.CommitObject:
			return h, nil
		case plumbing.TagObject:
			raw, err := m.read(plumbing.TagObject, h, maxCommit)
			if err != nil {
				return plumbing.ZeroHash, err
			}
			line, _, _ := bytes.Cut(raw, []byte("\n"))
			name, ok := strings.CutPrefix(string(line), "object ")
			if !ok {
				return plumbing.ZeroHash, sources.NewTreeError(h.String(), "tag doesn't start with its object")
			}
			if h, err = parseHash(name); err != nil {
				return plumbing.ZeroHash, sources.NewTreeError(name, "tag: %v", err)
			}
		default:
			return plumbing.ZeroHash, sources.NewTreeError(h.String(), "the ref points to a %s; want a commit or a tag of one", o.Type())
		}
	}
	return plumbing.ZeroHash, sources.NewTreeError(h.String(), "more than three nested tags")
}

// contains reports whether the history of head contains ancestor. A missing parent
// is an error.
func (m *mirror) contains(head, ancestor plumbing.Hash) (bool, error) {
	found := false
	err := m.walk(head, maxWalk, func(h plumbing.Hash) bool {
		found = h == ancestor
		return !found
	})
	return found, err
}

// walk visits the history of head breadth first until visit returns false. More
// than limit commits are an error.
func (m *mirror) walk(head plumbing.Hash, limit int, visit func(plumbing.Hash) bool) error {
	queued := map[plumbing.Hash]bool{head: true}
	queue := []plumbing.Hash{head}
	for len(queue) > 0 {
		h := queue[0]
		queue = queue[1:]
		if !visit(h) {
			return nil
		}
		c, err := m.commit(h)
		if err != nil {
			return err
		}
		for _, p := range c.parents {
			if !queued[p] {
				queued[p] = true
				queue = append(queue, p)
			}
		}
		if len(queued) > limit {
			return sources.NewLimitError(head.String(), "history has more than %d commits", limit)
		}
	}
	return nil
}

// fetch fetches want and its history in an open session and records it as seen.
func (m *mirror) fetch(ctx context.Context, s transport.UploadPackSession, adv *packp.AdvRefs, want plumbing.Hash, maxSize int64) (err error) {
	used, _, err := m.usage()
	if err != nil {
		return err
	}
	if used >= maxSize {
		return refuse(ReasonLimitExceeded, fmt.Sprintf("the mirror has %d bytes; the limit is %d (spec.maxSize)", used, maxSize))
	}
	req := packp.NewUploadPackRequestFromCapabilities(adv.Capabilities)
	req.Wants = []plumbing.Hash{want}
	if adv.Capabilities.Supports(capability.NoProgress) {
		if err := req.Capabilities.Set(capability.NoProgress); err != nil {
			return err
		}
	}
	if seen := m.seen(); !seen.IsZero() {
		_ = m.walk(seen, maxWalk, func(h plumbing.Hash) bool { // after an error fewer haves are sent
			req.Haves = append(req.Haves, h)
			return len(req.Haves) < maxHaves
		})
	}
	res, err := s.UploadPack(ctx, req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.Close()) }()
	var pack io.Reader = newLimitReader(res, maxSize-used, "the pack")
	switch {
	case req.Capabilities.Supports(capability.Sideband64k):
		pack = sideband.NewDemuxer(sideband.Sideband64k, pack)
	case req.Capabilities.Supports(capability.Sideband):
		pack = sideband.NewDemuxer(sideband.Sideband, pack)
	}
	if err := m.install(pack); err != nil {
		return ctxError(ctx, err)
	}
	head, err := m.peel(want)
	if err != nil {
		return err
	}
	return m.store.SetReference(plumbing.NewHashReference(seenRef, head))
}

// install writes a pack to disk, indexes it and then adds it to the mirror, so
// that an interrupted transfer has no effect.
func (m *mirror) install(pack io.Reader) (err error) {
	dir := filepath.Join(m.dir, "objects", "pack")
	f, err := os.CreateTemp(dir, "tmp_pack_*")
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if rm := os.Remove(f.Name()); !errors.Is(rm, fs.ErrNotExist) {
			err = errors.Join(err, rm)
		}
	}()
	if _, err := io.Copy(f, pack); err != nil {
		return err
	}
	sum, index, err := indexPack(f)
	if err != nil {
		return fmt.Errorf("read the pack: %w", err)
	}
	base := filepath.Join(dir, "pack-"+sum.String())
	var idx bytes.Buffer
	if _, err := idxfile.NewEncoder(&idx).Encode(index); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), base+".pack"); err != nil {
		return err
	}
	// The index is renamed last: a pack without one is ignored.
	tmp := filepath.Join(dir, "tmp_idx_"+sum.String())
	if err := os.WriteFile(tmp, idx.Bytes(), 0o400); err != nil {
		return err
	}
	if err := os.Rename(tmp, base+".idx"); err != nil {
		return err
	}
	m.store.Reindex()
	return nil
}

// indexPack reads the pack in f and checks all objects and the checksum.
func indexPack(f *os.File) (plumbing.Hash, *idxfile.MemoryIndex, error) {
	var head [12]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return plumbing.ZeroHash, nil, fmt.Errorf("header: %w", err)
	}
	if n := binary.BigEndian.Uint32(head[8:]); n > maxObjects {
		return plumbing.ZeroHash, nil, refuse(ReasonLimitExceeded, fmt.Sprintf("the pack declares %d objects; the limit is %d", n, maxObjects))
	}
	if err := scanPack(f); err != nil {
		return plumbing.ZeroHash, nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return plumbing.ZeroHash, nil, err
	}
	w := new(idxfile.Writer)
	p, err := packfile.NewParser(packfile.NewScanner(f), w)
	if err != nil {
		return plumbing.ZeroHash, nil, err
	}
	sum, err := p.Parse()
	if err != nil {
		return plumbing.ZeroHash, nil, err
	}
	index, err := w.Index()
	return sum, index, err
}

// tree reads the tree of a commit strictly.
func (m *mirror) tree(root plumbing.Hash, limits sources.Limits, isPointer func(name string, data []byte) error) (*sources.Tree, error) {
	b := sources.NewTreeBuilder(limits)
	limits = limits.WithDefaults()
	var read func(dir string, h plumbing.Hash, depth int) error
	trees := 0
	read = func(dir string, h plumbing.Hash, depth int) error {
		// Without empty directories, trees can't outnumber files by more than
		// the depth. This limits shared subtrees.
		if trees++; depth > limits.Depth || trees > limits.Files {
			return sources.NewLimitError(dir, "exceeds the limits of %d nested directories and %d in total", limits.Depth, limits.Files)
		}
		raw, err := m.read(plumbing.TreeObject, h, 16<<20)
		if err != nil {
			return err
		}
		entries, err := parseTree(dir, raw)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := join(dir, e.name)
			if e.mode == modeDir {
				if err := read(name, e.hash, depth+1); err != nil {
					return err
				}
				continue
			}
			if err := m.addBlob(b, name, e, isPointer); err != nil {
				return err
			}
		}
		return nil
	}
	if err := read("", root, 0); err != nil {
		return nil, err
	}
	return b.Build()
}

func (m *mirror) addBlob(b *sources.TreeBuilder, name string, e treeEntry, isPointer func(string, []byte) error) error {
	data, err := m.read(plumbing.BlobObject, e.hash, b.Room())
	if limit, ok := errors.AsType[*sources.TreeError](err); ok {
		return sources.NewLimitError(name, "%s", limit.Problem)
	}
	if err != nil {
		return err
	}
	if e.mode == modeLink {
		return b.AddLink(name, string(data))
	}
	if err := isPointer(name, data); err != nil {
		return err
	}
	return b.Add(name, data, e.mode == modeExecutable)
}
