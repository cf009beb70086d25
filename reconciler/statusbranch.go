// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/reconciler/state"
	"github.com/lockstep-dev/lockstep/reconciler/writeback"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/git"
)

// newReporter returns the reporter of the status branches.
func (o *Operator) newReporter() (*writeback.Reporter, error) {
	return writeback.New(writeback.Config{
		Client:      o.base.Client,
		Informers:   o.manager.GetCache(),
		Store:       publishedState{o.base.Store},
		Branches:    &statusBranches{opts: o.opts, secrets: o.kube.CoreV1().Secrets(v1alpha1.Namespace)},
		Ready:       o.base.WaitReady,
		Edited:      func(obj *v1alpha1.GitSource) bool { return o.sources.NotFromParent(obj).Reason != "" },
		PatchStatus: o.base.PatchLatestStatus,
		Insecure:    o.opts.insecureOptions(),
		Now:         o.opts.Now,
		Log:         o.opts.Log.WithName("writeback"),
	})
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
	host, err := control.HostOf(url)
	if err != nil {
		return nil, err
	}
	cfg := git.PublisherConfig{
		URL: url, Cluster: source.Spec.Cluster, Last: last, Timeout: source.Spec.Timeout.Duration,
		AllowInsecure: b.opts.AllowInsecureSources, Now: b.opts.Now, Outbound: b.opts.Outbound,
	}
	spec := source.Spec.WriteBack
	if ref := spec.SecretRef; ref != nil {
		cfg.Credentials = func(ctx context.Context) (git.Credentials, error) {
			data, err := control.BoundSecret(ctx, b.secrets, ref.Name, v1alpha1.UseGitStatus, host)
			if err != nil {
				return git.Credentials{}, err
			}
			return git.CredentialsFromSecret(data), nil
		}
	}
	if ref := spec.SigningKeyRef; ref != nil {
		cfg.SigningKey = func(ctx context.Context) ([]byte, error) {
			data, err := control.BoundSecret(ctx, b.secrets, ref.Name, v1alpha1.UseStatusSigning, "")
			if err != nil {
				return nil, err
			}
			if len(data["identity"]) == 0 {
				return nil, control.NewError(control.ReasonSecretNotFound, true, fmt.Errorf("secret %s has no key identity", ref.Name))
			}
			return data["identity"], nil
		}
	}
	return git.NewPublisher(cfg)
}
