// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lockstep-dev/lockstep/sources/sourcetest"
)

func TestConformance(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		t.Helper()
		s := newServer(t)
		url := s.http()
		return sourcetest.Fixture{
			Source: s.source(url, &clock{}),
			Put: func(t *testing.T, files, links map[string]string) {
				t.Helper()
				entries, err := os.ReadDir(s.work)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					if e.Name() == ".git" {
						continue
					}
					if err := os.RemoveAll(filepath.Join(s.work, e.Name())); err != nil {
						t.Fatal(err)
					}
				}
				for name, target := range links {
					if err := os.MkdirAll(filepath.Dir(filepath.Join(s.work, name)), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.Symlink(target, filepath.Join(s.work, name)); err != nil {
						t.Fatal(err)
					}
				}
				s.commit(files)
			},
		}
	})
}
