// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/registry"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

// Publisher pushes artifacts and signatures to registries and OCI layouts.
type Publisher struct{ client *registry.Client }

// NewPublisher returns a Publisher with the client's credentials.
func NewPublisher(c *registry.Client) *Publisher { return &Publisher{client: c} }

// Published is the location of a pushed artifact.
type Published struct {
	Repository string
	Digest     trust.Digest
}

// Reference returns repository@digest.
func (p Published) Reference() string { return p.Repository + "@" + p.Digest.String() }

// Identity is the identity in the signed content.
type Identity struct {
	Product string
	Version string
	Channel string
}

// annotations returns the identity as manifest annotations.
func (i Identity) annotations() map[string]string {
	a := map[string]string{verify.AnnotationProduct: i.Product, verify.AnnotationVersion: i.Version}
	if i.Channel != "" {
		a["lockstep.dev/channel"] = i.Channel
	}
	return a
}

// PushRelease pushes a release to a destination: "host/repository",
// "host/repository:tag" or "oci:DIR[:tag]".
func (p *Publisher) PushRelease(ctx context.Context, destination string, r *Release) (Published, error) {
	m := manifest{ArtifactType: registry.TypeRelease, Annotations: r.Identity().annotations()}
	a, err := newArtifact(m, registry.TypeEmpty, []byte(emptyConfig), []blob{bytesBlob(registry.TypeReleaseLayer, r.archive)})
	if err != nil {
		return Published{}, err
	}
	return p.push(ctx, destination, a)
}

// PushOS pushes an OS image from a file to a destination.
func (p *Publisher) PushOS(ctx context.Context, destination string, id Identity, file string) (Published, error) {
	if err := id.check(); err != nil {
		return Published{}, err
	}
	b, err := fileBlob(registry.TypeOSLayer, file)
	if err != nil {
		return Published{}, fmt.Errorf("read OS image %s: %w", file, err)
	}
	m := manifest{ArtifactType: registry.TypeOS, Annotations: id.annotations()}
	a, err := newArtifact(m, registry.TypeEmpty, []byte(emptyConfig), []blob{b})
	if err != nil {
		return Published{}, err
	}
	return p.push(ctx, destination, a)
}

// split separates a destination's repository from its tag.
func split(destination string) (repo, tag string) {
	repo, tag = destination, ""
	slash := strings.LastIndex(destination, "/")
	if i := strings.LastIndex(destination, ":"); i > slash && i >= len(registry.LayoutPrefix) {
		repo, tag = destination[:i], destination[i+1:]
	}
	return repo, tag
}

// push pushes an artifact, with the destination's tag if it has one.
func (p *Publisher) push(ctx context.Context, destination string, a *artifact) (Published, error) {
	if strings.Contains(destination, "@") {
		return Published{}, fmt.Errorf("push to %q: destination must not have a digest; use host/repository or host/repository:tag", destination)
	}
	repo, tag := split(destination)
	if err := p.write(ctx, repo, tag, a); err != nil {
		return Published{}, fmt.Errorf("push to %s: %w", destination, err)
	}
	return Published{Repository: repo, Digest: a.digest()}, nil
}

// write pushes an artifact, untagged if tag is empty.
func (p *Publisher) write(ctx context.Context, repo, tag string, a *artifact) error {
	img, err := a.image()
	if err != nil {
		return err
	}
	if dir, ok := strings.CutPrefix(repo, registry.LayoutPrefix); ok {
		return writeLayout(dir, tag, a, img)
	}
	r, opts, err := p.client.PushTarget(ctx, repo)
	if err != nil {
		return err
	}
	var ref name.Reference = r.Digest(a.digest().String())
	if tag != "" {
		ref = r.Tag(tag)
	}
	return remote.Write(ref, img, opts...)
}

// writeLayout adds an artifact to an OCI layout, which it creates if absent.
func writeLayout(dir, tag string, a *artifact, img v1.Image) error {
	p, err := layout.FromPath(dir)
	if errors.Is(err, fs.ErrNotExist) {
		p, err = layout.Write(dir, empty.Index)
	}
	if err != nil {
		return err
	}
	h, err := v1.NewHash(a.digest().String())
	if err != nil {
		return err
	}
	replaces := match.Digests(h)
	var opts []layout.Option
	if tag != "" {
		opts = append(opts, layout.WithAnnotations(map[string]string{registry.AnnotationRefName: tag}))
		replaces = either(replaces, match.Annotation(registry.AnnotationRefName, tag))
	}
	return p.ReplaceImage(img, replaces, opts...)
}

func either(a, b match.Matcher) match.Matcher {
	return func(d v1.Descriptor) bool { return a(d) || b(d) }
}

// WriteTree writes the files of a release to dir, as a payload path of a Git
// repository. It removes all other files from release-manifests.
func WriteTree(dir string, r *Release) error {
	if err := os.RemoveAll(filepath.Join(dir, payload.ReleaseDir)); err != nil {
		return err
	}
	for _, f := range r.files {
		to := filepath.Join(dir, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, f.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
