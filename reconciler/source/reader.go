// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/reconciler/control"
	"github.com/lockstep-dev/lockstep/sources"
	"github.com/lockstep-dev/lockstep/sources/dir"
	"github.com/lockstep-dev/lockstep/sources/git"
)

// reader reads a source: a Git repository or, as an insecure option, a plain
// directory.
type reader interface {
	sources.Source
	// Close waits for running calls; later calls fail.
	Close() error
}

// open returns the reader of a source.
func (s *runtimes) open(obj *v1alpha1.GitSource) (reader, error) {
	path, ok := plainDirectory(obj.Spec.URL)
	if !ok || !s.allowInsecure {
		cfg, err := s.gitConfig(obj)
		if err != nil {
			return nil, err
		}
		return git.New(cfg)
	}
	if obj.Spec.Verify != nil {
		return nil, control.NewError(git.ReasonInvalid, false, errors.New(
			"spec.verify requires signed commits, which a plain directory doesn't have; use a Git repository or remove spec.verify"))
	}
	return s.openDirectory(obj.Name, path)
}

// plainDirectory returns the path of a file URL that names a directory without a
// Git repository.
func plainDirectory(raw string) (string, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	info, err := os.Stat(u.Path)
	if err != nil || !info.IsDir() {
		return "", false
	}
	for _, mark := range []string{".git", "HEAD"} {
		if _, err := os.Stat(filepath.Join(u.Path, mark)); err == nil {
			return "", false
		}
	}
	return u.Path, true
}

// openDirectory opens a directory and triggers its source when it changes.
func (s *runtimes) openDirectory(name, path string) (reader, error) {
	source, err := dir.New(dir.Config{Path: path})
	if err != nil {
		return nil, err
	}
	log := s.log.WithName("directory").WithValues("gitsource", name, "path", path)
	stop, ok := s.Go(func(ctx context.Context) {
		err := source.Watch(ctx, func() { s.edits.Fire(name) })
		control.LogError(log, err, "watch of directory ended; falling back to spec.interval")
	})
	if !ok {
		return nil, fmt.Errorf("watch directory %s: this process isn't the leader", path)
	}
	return &watchedDirectory{Source: source, stop: stop}, nil
}

// watchedDirectory is a directory with its watch.
type watchedDirectory struct {
	*dir.Source
	stop func()
}

// Close implements reader.
func (d *watchedDirectory) Close() error {
	d.stop()
	return nil
}

// gitConfig returns the configuration of package git for a source.
func (s *runtimes) gitConfig(obj *v1alpha1.GitSource) (git.Config, error) {
	spec := obj.Spec.DeepCopy()
	host, err := control.HostOf(spec.URL)
	if err != nil {
		return git.Config{}, err
	}
	cfg := git.Config{
		URL:           spec.URL,
		Ref:           git.Ref{Branch: spec.Ref.Branch, Tag: spec.Ref.Tag, Semver: spec.Ref.Semver, Commit: spec.Ref.Commit, Name: spec.Ref.Name},
		Path:          spec.Path,
		Dir:           filepath.Join(s.stateDir, "sources", obj.Name),
		Timeout:       spec.Timeout.Duration,
		Outbound:      s.outbound,
		AllowInsecure: s.allowInsecure,
		Now:           s.now,
	}
	if spec.MaxSize != nil {
		cfg.MaxSize = spec.MaxSize.Value()
	}
	if ref := spec.SecretRef; ref != nil {
		cfg.Credentials = func(ctx context.Context) (git.Credentials, error) {
			data, err := control.BoundSecret(ctx, s.secrets, ref.Name, v1alpha1.UseGitRead, host)
			if err != nil {
				return git.Credentials{}, err
			}
			return git.CredentialsFromSecret(data), nil
		}
	}
	if v := spec.Verify; v != nil {
		cfg.InitialCommit = v.InitialCommit
		cfg.Authorities = func(context.Context) ([]git.Authority, error) { return s.authorities() }
	}
	return cfg, nil
}

// authorities returns the keys of role git in the active trust document.
func (s *runtimes) authorities() ([]git.Authority, error) {
	current, ok := s.store.Trust(s.now())
	if !ok {
		return nil, control.NewError(string(trust.PolicyMissing), true, errors.New(
			"no trust policy is active, but spec.verify requires one; apply a TrustPolicy and pin its digest"))
	}
	role, ok := current.Document.Roles[trust.RoleGit]
	if !ok || role.Threshold > 1 {
		return nil, control.NewError(string(trust.ThresholdNotMet), true, fmt.Errorf(
			"spec.verify.mode head requires role git with threshold 1; the trust policy has threshold %d", role.Threshold))
	}
	var out []git.Authority
	for _, key := range current.Document.RoleKeys(trust.RoleGit) {
		if key.Covers(s.now()) {
			out = append(out, git.Authority{Name: key.Name, SSH: key.SSH, OpenPGP: key.PGP})
		}
	}
	return out, nil
}
