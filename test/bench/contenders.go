// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/test/workload"
)

// rawWidth is the concurrency of the bare loop; a higher one only adds
// latency.
const rawWidth = 8

// rawLoop is the minimum for applying: one forced server-side apply per
// object, with bodies built in advance and answers not decoded.
type rawLoop struct {
	client rest.Interface
	stages [2][]rawPatch // foundations, all others
}

type rawPatch struct {
	path []string
	body []byte
}

func newRawLoop(config *rest.Config, objects []workload.Object) (*rawLoop, error) {
	rc := rest.CopyConfig(config)
	rc.QPS = -1
	rc.GroupVersion, rc.APIPath = &schema.GroupVersion{}, "/"
	rc.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("bare client: %w", err)
	}
	ms, err := workload.Manifests(objects)
	if err != nil {
		return nil, err
	}
	loop := &rawLoop{client: client}
	for i, o := range objects {
		stage := 1
		if o.Foundation {
			stage = 0
		}
		loop.stages[stage] = append(loop.stages[stage], rawPatch{path: pathOf(&ms[i], o.Resource), body: ms[i].JSON})
	}
	return loop, nil
}

func pathOf(m *payload.Manifest, resource string) []string {
	path := []string{"apis", m.GVK.Group, m.GVK.Version}
	if m.GVK.Group == "" {
		path = []string{"api", m.GVK.Version}
	}
	if m.ID.Namespace != "" {
		path = append(path, "namespaces", m.ID.Namespace)
	}
	return append(path, resource, m.ID.Name)
}

// apply sends all patches.
func (l *rawLoop) apply(ctx context.Context) (spent, error) {
	force := true
	options := &metav1.PatchOptions{FieldManager: "bench-raw", Force: &force}
	return self(func() error {
		for _, stage := range l.stages {
			group, inner := errgroup.WithContext(ctx)
			group.SetLimit(rawWidth)
			for _, p := range stage {
				group.Go(func() error {
					request := l.client.Patch(types.ApplyPatchType).AbsPath(p.path...).Body(p.body)
					return request.VersionedParams(options, metav1.ParameterCodec).Do(inner).Error()
				})
			}
			if err := group.Wait(); err != nil {
				return err
			}
		}
		return nil
	})
}

// kubectlApply runs kubectl on the file without validation, for which it reads
// an OpenAPI document per object: kubectl 1.32 takes seven times as long with
// it.
func kubectlApply(ctx context.Context, kubeconfig, file string) (spent, error) {
	command := exec.CommandContext(ctx, "kubectl", "--kubeconfig", kubeconfig, "apply",
		"--server-side", "--force-conflicts", "--validate=false", "--field-manager=bench-kubectl", "-f", file)
	var problems bytes.Buffer
	command.Stderr = &problems
	began := time.Now()
	if err := command.Run(); err != nil {
		return spent{}, fmt.Errorf("kubectl apply: %w: %.500s", err, problems.String())
	}
	state := command.ProcessState
	return spent{wall: time.Since(began), cpu: state.UserTime() + state.SystemTime()}, nil
}

// buildPeers compiles the peers' program into dir.
func buildPeers(ctx context.Context, dir string) (string, error) {
	out, err := filepath.Abs(filepath.Join(dir, "bench-peers"))
	if err != nil {
		return "", fmt.Errorf("place of the peers' program: %w", err)
	}
	command := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join("test", "bench", "peers"), "-o", out, ".")
	if text, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the peers (run this at the root of the project): %w: %.2000s", err, text)
	}
	return out, nil
}

// fluxSSA is a process that applies with fluxcd/pkg/ssa; it stays warm.
type fluxSSA struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// fluxWidth is the default of kustomize-controller.
const fluxWidth = "4"

func startFluxSSA(ctx context.Context, program, kubeconfig string) (*fluxSSA, error) {
	command := exec.CommandContext(ctx, program, kubeconfig, fluxWidth)
	command.Stderr = io.Discard // controller-runtime misses a logger
	in, err := command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the peers: %w", err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the peers: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start the peers: %w", err)
	}
	return &fluxSSA{command: command, in: in, out: bufio.NewReader(out)}, nil
}

func (f *fluxSSA) close() error { return errors.Join(f.in.Close(), f.command.Wait()) }

// apply applies the file.
func (f *fluxSSA) apply(file string) (spent, error) {
	if _, err := fmt.Fprintln(f.in, file); err != nil {
		return spent{}, fmt.Errorf("ask the peers: %w", err)
	}
	line, err := f.out.ReadBytes('\n')
	if err != nil {
		return spent{}, fmt.Errorf("answer of the peers: %w", err)
	}
	var answer struct {
		WallSeconds float64 `json:"wallSeconds"`
		CPUSeconds  float64 `json:"cpuSeconds"`
		Error       string  `json:"error"`
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return spent{}, fmt.Errorf("answer of the peers: %w", err)
	}
	if answer.Error != "" {
		return spent{}, fmt.Errorf("fluxcd/pkg/ssa: %s", answer.Error)
	}
	return spent{wall: duration(answer.WallSeconds), cpu: duration(answer.CPUSeconds)}, nil
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// writeDocuments writes the objects for tools that take a file.
func writeDocuments(path string, objects []workload.Object) error {
	text, err := workload.Documents(objects)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write the objects: %w", err)
	}
	return nil
}
