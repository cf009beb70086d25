// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"strings"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/writeback"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/git"
)

// addReporter registers the reporter of the status branches.
func (o *Operator) addReporter() error {
	r, err := writeback.New(writeback.Config{
		Client:      o.base.client,
		Informers:   o.manager.GetCache(),
		Store:       publishedState{o.base.store},
		Branches:    &statusBranches{opts: o.opts, secrets: o.sources.secrets},
		Ready:       o.base.waitReady,
		Edited:      func(source *v1alpha1.GitSource) bool { return o.sources.edited(source).Reason != "" },
		PatchStatus: o.base.patchFresh,
		Insecure:    o.opts.doors(),
		Now:         o.opts.Now,
		Log:         o.opts.Log.WithName("writeback"),
	})
	if err != nil {
		return err
	}
	return o.manager.Add(r)
}

// publishedState is the persisted state as the reporter uses it.
type publishedState struct{ store *state.Store }

// Source implements writeback.Store.
func (s publishedState) Source(name string) (writeback.Accepted, bool) {
	record, ok := s.store.Source(name)
	if !ok {
		return writeback.Accepted{}, false
	}
	out := writeback.Accepted{
		Time: record.Time, Signer: verifiedSigner(record.SignedBy),
		Published: writeback.Published{Key: record.Published.Key, Commit: record.Published.Commit},
	}
	if rev, err := sources.ParseRevision(record.Revision); err == nil {
		rev.Tree = record.Tree
		out.Revision = rev
	}
	return out, true
}

// SetPublished implements writeback.Store.
func (s publishedState) SetPublished(ctx context.Context, name string, p writeback.Published) error {
	return s.store.SetPublished(ctx, name, state.Published{Key: p.Key, Commit: p.Commit})
}

// persistedSigner returns the signer for the persisted state, zero for none.
func persistedSigner(s *sources.Signer) state.Signer {
	if s == nil {
		return state.Signer{}
	}
	return state.Signer{Name: sanitize.Line(s.Name), Format: sanitize.Line(s.Format), Fingerprint: sanitize.Line(s.Fingerprint)}
}

// verifiedSigner returns the signer of the persisted state, nil if there is none.
func verifiedSigner(s state.Signer) *sources.Signer {
	if s == (state.Signer{}) {
		return nil
	}
	return &sources.Signer{Name: s.Name, Format: s.Format, Fingerprint: s.Fingerprint}
}

// statusBranches opens status branches with the credentials of their sources.
type statusBranches struct {
	opts    Options
	secrets typedcorev1.SecretInterface
}

// Open implements writeback.Branches.
func (b *statusBranches) Open(source *v1alpha1.GitSource, url, last string) (writeback.Publisher, error) {
	host, err := hostOf(url)
	if err != nil {
		return nil, err
	}
	cfg := git.PublisherConfig{
		URL: url, Cluster: source.Spec.Cluster, Last: last, Timeout: source.Spec.Timeout.Duration,
		AllowInsecure: b.opts.AllowInsecureSources, Now: b.opts.Now,
	}
	spec := source.Spec.WriteBack
	if ref := spec.SecretRef; ref != nil {
		cfg.Credentials = func(ctx context.Context) (git.Credentials, error) {
			data, err := boundSecret(ctx, b.secrets, ref.Name, v1alpha1.UseGitStatus, host)
			if err != nil {
				return git.Credentials{}, err
			}
			return git.CredentialsFromSecret(data), nil
		}
	}
	if ref := spec.SigningKeyRef; ref != nil {
		cfg.SigningKey = func(ctx context.Context) ([]byte, error) {
			data, err := boundSecret(ctx, b.secrets, ref.Name, v1alpha1.UseStatusSigning, "")
			if err != nil {
				return nil, err
			}
			if len(data["identity"]) == 0 {
				return nil, &reasonError{reasonSecretNotFound, true, fmt.Errorf("secret %s has no key identity", ref.Name)}
			}
			return data["identity"], nil
		}
	}
	return git.NewPublisher(cfg)
}

// digestOf returns the digest of an image reference, "" without one.
func digestOf(image string) string {
	_, digest, _ := strings.Cut(image, "@")
	return digest
}
