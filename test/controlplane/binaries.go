// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Environment variables for binaries built elsewhere.
const (
	// EnvBinary is the path of a multi-call binary of Ensure.
	EnvBinary = "LOCKSTEP_CONTROLPLANE"
	// EnvAssets is the directory of separate binaries, as envtest uses it.
	EnvAssets = "KUBEBUILDER_ASSETS"
)

// The components by the names of their binaries.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

// binaries finds the command of a component.
type binaries struct {
	multicall string // one binary for all, or empty
	assets    string // a directory with one binary each
}

// command returns the start of the argument vector of a component.
func (b binaries) command(component string) ([]string, error) {
	if b.multicall != "" {
		return []string{b.multicall, component}, nil
	}
	path := filepath.Join(b.assets, component)
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("find %s in $%s: %w; unset the variable and run: make controlplane", component, EnvAssets, err)
	}
	return []string{path}, nil
}

// fromEnvironment returns the binaries of the environment variables, if set.
func fromEnvironment(getenv func(string) string) (binaries, bool, error) {
	if path := getenv(EnvBinary); path != "" {
		if _, err := os.Stat(path); err != nil {
			return binaries{}, false, fmt.Errorf("find the binary that $%s names: %w", EnvBinary, err)
		}
		return binaries{multicall: path}, true, nil
	}
	if dir := getenv(EnvAssets); dir != "" {
		return binaries{assets: dir}, true, nil
	}
	return binaries{}, false, nil
}

// sourceDir finds the nested module of the multi-call binary from the working
// directory upwards: tests and commands run inside the repository.
func sourceDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		candidate := filepath.Join(at, "test", "controlplane", "multicall")
		if _, err := os.Stat(filepath.Join(candidate, "go.mod")); err == nil {
			return candidate, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("find test/controlplane/multicall above %s: run inside the repository, or set $%s", dir, EnvBinary)
		}
	}
}

// cachePath returns the path of the cached binary for this source and Go
// release: the key covers everything that determines its bytes except the
// flags in build.
func cachePath(source string) (string, error) {
	hash := sha256.New()
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		data, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", fmt.Errorf("read the source of the control plane: %w", err)
		}
		fmt.Fprintf(hash, "%s %d\n", name, len(data))
		hash.Write(data)
	}
	fmt.Fprintf(hash, "%s %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return inCache("controlplane", hex.EncodeToString(hash.Sum(nil))[:32], "controlplane")
}

// kwokPath returns the path of the cached kwok binary.
func kwokPath() (string, error) {
	return inCache("kwok", kwokVersion+"-"+runtime.Version(), "kwok")
}

func inCache(elements ...string) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w; set XDG_CACHE_HOME", err)
	}
	return filepath.Join(append([]string{dir, "lockstep"}, elements...)...), nil
}

// exists reports whether a regular, executable file lies at path.
func exists(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for %s: %w", path, err)
	}
	return info.Mode().IsRegular() && info.Mode()&0o111 != 0, nil
}
