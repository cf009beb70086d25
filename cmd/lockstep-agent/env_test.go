// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
	"github.com/lockstep-dev/lockstep/payload/build"
	"github.com/lockstep-dev/lockstep/payload/registry"
)

// asAgent makes this test binary run the agent: the tests start the real program.
const asAgent = "LOCKSTEP_TEST_AS_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const testCluster = "uid-1"

// env is a registry with signed OS images, a trust document, and a host that runs
// under its supervisor in separate processes.
type env struct {
	t         *testing.T
	dir       string
	registry  string
	publisher *build.Publisher
	key       *build.Key
	fleet     *fleet.Fleet
	fence     nodeos.Fence
	address   string
	output    *tail
	process   *exec.Cmd
	pki       *mtls.Directory
}

// tail stores the output of a process for a failing test.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *tail) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *tail) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// newEnv returns an env with a running host.
func newEnv(t *testing.T, args ...string) *env {
	t.Helper()
	b := newRegistryEnv(t)
	first := b.image(sim.Document{Version: "2.0.0", KubeletVersion: "v1.36.3"}, true)
	b.start(first, args...)
	return b
}

// newRegistryEnv returns an env without a host: a registry and a key.
func newRegistryEnv(t *testing.T) *env {
	t.Helper()
	b := &env{t: t, dir: t.TempDir(), fence: nodeos.Fence{ClusterUID: testCluster, Epoch: 1}, output: &tail{}}
	server := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	b.registry = strings.TrimPrefix(server.URL, "http://")
	client, err := registry.New(registry.Config{}, registry.Options{AllowLoopback: true, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	b.publisher = build.NewPublisher(client)
	if b.key, err = build.GenerateKey(); err != nil {
		t.Fatal(err)
	}
	return b
}

// image pushes an image of the simulated machine, signed or not.
func (b *env) image(doc sim.Document, signed bool) nodeos.Image {
	b.t.Helper()
	doc.Product = "platform-os"
	content, err := json.Marshal(doc)
	if err != nil {
		b.t.Fatal(err)
	}
	file := filepath.Join(b.dir, "system-"+doc.Version+".json")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		b.t.Fatal(err)
	}
	published, err := b.publisher.PushOS(b.t.Context(), b.registry+"/platform/os", build.Identity{Product: doc.Product, Version: doc.Version}, file)
	if err != nil {
		b.t.Fatal(err)
	}
	if signed {
		if _, err := b.publisher.Sign(b.t.Context(), published.Repository, published.Digest, b.key, []build.Format{build.Bundle}); err != nil {
			b.t.Fatal(err)
		}
	}
	ref, err := nodeos.ParseImageRef(published.Reference())
	if err != nil {
		b.t.Fatal(err)
	}
	return nodeos.Image{Ref: ref, Product: doc.Product, Version: doc.Version}
}

// trustFile writes the first trust document and returns its path and digest.
func (b *env) trustFile() (string, trust.Digest) {
	b.t.Helper()
	sealed, digest := b.envelope(1, "")
	file := filepath.Join(b.dir, "trust.json")
	if err := os.WriteFile(file, sealed, 0o600); err != nil {
		b.t.Fatal(err)
	}
	return file, digest
}

// envelope returns a version of the trust document with extra lines.
func (b *env) envelope(number int, extra string) ([]byte, trust.Digest) {
	b.t.Helper()
	public, err := b.key.PublicPEM()
	if err != nil {
		b.t.Fatal(err)
	}
	document := fmt.Sprintf("name: root\nversion: %d\nexpires: 2099-01-01T00:00:00Z\nclusters: [\"*\"]\nkeys:\n- name: k\n  pem: |\n    %s\n"+
		"roles:\n  root: {keys: [k], threshold: 1}\n  os: {keys: [k], threshold: 1}\n"+
		"rules:\n- {match: {kind: NodeOS, name: \"*\"}, product: platform-os, role: os}\n%s",
		number, strings.ReplaceAll(strings.TrimSpace(string(public)), "\n", "\n    "), extra)
	sealed, err := trust.Seal([]byte(document), b.key)
	if err != nil {
		b.t.Fatal(err)
	}
	return sealed, trust.DigestOf([]byte(document))
}

// start starts host h1 with a first OS image, and a fleet connected to it.
func (b *env) start(first nodeos.Image, extra ...string) {
	b.t.Helper()
	now := time.Now()
	pki, err := mtls.InitDirectory(filepath.Join(b.dir, "pki"), testCluster, now)
	if err != nil {
		b.t.Fatal(err)
	}
	b.pki = pki
	host, _, err := pki.IssueHost("h1", nil, nil, now)
	if err != nil {
		b.t.Fatal(err)
	}
	caller, _, err := pki.IssueCaller("reconciler", mtls.RoleReconciler, now)
	if err != nil {
		b.t.Fatal(err)
	}
	b.address = freeAddress(b.t)
	file, digest := b.trustFile()
	b.process = b.spawn(append([]string{
		"-supervise", "-listen", b.address, "-state-dir", filepath.Join(b.dir, "state"), "-pki-dir", host, "-cluster-uid", testCluster,
		"-node-name", "node-1", "-platform-dir", b.dir, "-trust-policy", file, "-trust-root-digest", digest.String(), "-allow-loopback-registries",
		"-min-restart-interval", "1ms", "-sim-dir", b.machine(), "-sim-image", filepath.Join(b.dir, "system-2.0.0.json"), "-sim-image-ref", first.Ref.String(),
	}, extra...))
	identity, err := mtls.Open(mtls.InDir(caller), time.Now)
	if err != nil {
		b.t.Fatal(err)
	}
	b.fleet, err = fleet.New(fleet.Config{Identity: identity, ClusterUID: testCluster, Version: version, Now: time.Now})
	if err != nil {
		b.t.Fatal(err)
	}
	b.fleet.SetTargets([]fleet.Target{{HostID: "h1", Addresses: []string{b.address}}})
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- b.fleet.Run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("fleet: %v", err)
		}
	})
	b.until("connected", func(s fleet.State) bool { return s.Connected })
}

func (b *env) machine() string { return filepath.Join(b.dir, "machine") }

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// spawn runs the agent program until the test ends.
func (b *env) spawn(args []string) *exec.Cmd {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), os.Args[0], args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Env = append(os.Environ(), asAgent+"=1")
	cmd.Stdout, cmd.Stderr = b.output, b.output
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = cmd.Wait() // the test's context has ended
		if b.t.Failed() {
			b.t.Logf("output of the agent:\n%s", b.output)
		}
	})
	return cmd
}

// until waits until fits returns true for the fleet's state of the host.
func (b *env) until(what string, fits func(fleet.State) bool) fleet.State {
	b.t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		state, _ := b.fleet.State("h1")
		if fits(state) {
			return state
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			b.t.Fatalf("host: not %s in 60 s; %+v operation %+v last %+v", what, state, state.Facts.Operation, state.Facts.Last)
		}
	}
}

// ended waits until an operation has ended and returns its status.
func (b *env) ended(id string) nodeos.OperationStatus {
	b.t.Helper()
	state := b.until("done with "+id, func(s fleet.State) bool {
		return s.Connected && s.Facts.Last != nil && s.Facts.Last.ID == id && s.Facts.Operation == nil
	})
	return *state.Facts.Last
}

func (b *env) order(id string) fleet.Order {
	return fleet.Order{OperationID: id, Attempt: "a1", Fence: b.fence}
}

// onTrial activates an image and waits until it runs on trial.
func (b *env) onTrial(id string, a fleet.Activation) fleet.State {
	b.t.Helper()
	if _, err := b.fleet.Activate(b.t.Context(), "h1", b.order(id), a); err != nil {
		b.t.Fatal(err)
	}
	return b.until("on trial", func(s fleet.State) bool {
		return s.Connected && s.Facts.Operation != nil && s.Facts.Operation.ID == id && s.Facts.Operation.State == nodeos.OperationOnTrial
	})
}

// agentPID returns the process id of the agent under the supervisor.
func (b *env) agentPID() int {
	b.t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", b.process.Process.Pid))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for word := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(word)
			if err == nil {
				return pid
			}
		}
	}
	b.t.Fatal("the supervisor has no agent process")
	return 0
}
