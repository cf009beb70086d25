// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	kwokVersion = "v0.8.0"
	// expectedPackages is how many packages a cold build of the multi-call
	// binary compiles; it only serves the progress line.
	expectedPackages = 2528
	kwokPackages     = 1260
	// progressEvery is the number of packages between two progress lines.
	progressEvery = 100
)

// versionFlags are linked into the binary: otherwise the server's version is
// v0.0.0, which kubectl can't parse.
const versionFlags = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=v1.36.3" +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=36" +
	" -X k8s.io/client-go/pkg/version.gitVersion=v1.36.3"

// Ensure returns the path of the multi-call binary and compiles it if it isn't
// cached: about five minutes on two idle cores. It writes a line per hundred
// packages to progress. Concurrent calls of several processes compile once.
func Ensure(ctx context.Context, progress io.Writer) (string, error) {
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	target, err := cachePath(source)
	if err != nil {
		return "", err
	}
	return target, build(ctx, progress, compilation{
		name: "the control plane", target: target, packages: expectedPackages,
		dir: source,
		args: func(out string) []string {
			return []string{"build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", versionFlags, "-o", filepath.Join(out, "controlplane"), "."}
		},
	})
}

// EnsureKwok does the same for kwok: about a minute.
func EnsureKwok(ctx context.Context, progress io.Writer) (string, error) {
	target, err := kwokPath()
	if err != nil {
		return "", err
	}
	return target, build(ctx, progress, compilation{
		name: "kwok", target: target, packages: kwokPackages,
		dir:   os.TempDir(), // outside any module: kwok is built with its own requirements
		gobin: true,
		args: func(string) []string {
			return []string{"install", "-v", "-trimpath", "-ldflags", "-s -w", "sigs.k8s.io/kwok/cmd/kwok@" + kwokVersion}
		},
	})
}

// compilation describes one cached binary.
type compilation struct {
	name, target string
	packages     int
	dir          string
	gobin        bool // the command installs into GOBIN
	args         func(out string) []string
}

// build compiles into a temporary directory beside the target and renames it,
// so that the target is complete or absent. A file lock admits one builder at
// a time.
func build(ctx context.Context, progress io.Writer, c compilation) error {
	if ok, err := exists(c.target); ok || err != nil {
		return err
	}
	dir := filepath.Dir(c.target)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the cache directory: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return fmt.Errorf("wait for another build of %s: %w", c.name, err)
	}
	defer unlock()
	if ok, err := exists(c.target); ok || err != nil {
		return err // another process compiled it
	}
	out, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return fmt.Errorf("make a build directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(out) }()
	if err := compile(ctx, progress, c, out); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(out, filepath.Base(c.target)), c.target); err != nil {
		return fmt.Errorf("put %s into the cache: %w", c.name, err)
	}
	return nil
}

func compile(ctx context.Context, progress io.Writer, c compilation, out string) error {
	cmd := exec.CommandContext(ctx, "go", c.args(out)...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if c.gobin {
		cmd.Env = append(cmd.Env, "GOBIN="+out)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("compile %s: %w", c.name, err)
	}
	fmt.Fprintf(progress, "compiling %s (once; the result is cached)\n", c.name)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("compile %s: %w", c.name, err)
	}
	last := follow(stderr, progress, c)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("compile %s: %w\n%s", c.name, err, last)
	}
	return nil
}

// follow counts the packages in the output of go build and returns its last
// lines.
func follow(r io.Reader, progress io.Writer, c compilation) string {
	var last [][]byte
	count := 0
	for scanner := bufio.NewScanner(r); scanner.Scan(); {
		line := bytes.Clone(scanner.Bytes())
		if last = append(last, line); len(last) > 20 {
			last = last[1:]
		}
		if isPackage(string(line)) {
			if count++; count%progressEvery == 0 {
				fmt.Fprintf(progress, "compiling %s: %d/%d packages\n", c.name, count, max(count, c.packages))
			}
		}
	}
	return string(bytes.Join(last, []byte("\n")))
}

// isPackage reports whether a line of go build -v is an import path, rather
// than a message about downloads or errors.
func isPackage(line string) bool {
	return line != "" && !strings.ContainsAny(line, " \t#:")
}

// lock takes an exclusive file lock; the kernel drops it if this program dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	err = poll(ctx, func(context.Context) (bool, error) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}
