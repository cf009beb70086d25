// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agent"
	"github.com/lockstep-dev/lockstep/nodeos/events"
	"github.com/lockstep-dev/lockstep/nodeos/logs"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
)

// idleHost is a host without operations that has stored a fence.
type idleHost struct{ fence nodeos.Fence }

func (h *idleHost) Run(context.Context, nodeos.Sequence, nodeos.Request, ...nodeos.ControllerOption) (nodeos.Ticket, error) {
	return nodeos.Ticket{}, nodeos.Refuse("Idle", "this host takes no orders")
}

func (h *idleHost) Decide(context.Context, nodeos.Decision) error {
	return nodeos.Refuse("Idle", "this host takes no orders")
}

func (h *idleHost) Extend(context.Context, nodeos.Extension) (time.Time, error) {
	return time.Time{}, nodeos.Refuse("Idle", "this host takes no orders")
}

func (h *idleHost) ResetFence(context.Context) error {
	h.fence = nodeos.Fence{}
	return nil
}

func (h *idleHost) Fence() nodeos.Fence { return h.fence }

func (h *idleHost) Operation(string) (nodeos.OperationStatus, bool) {
	return nodeos.OperationStatus{}, false
}

func (h *idleHost) Facts(context.Context) (nodeos.HostFacts, error) {
	return nodeos.HostFacts{
		NodeName: "node-1", Mode: nodeos.ModeMetal, Fence: h.fence,
		Inventory: nodeos.Inventory{
			Backend: "sim", BootID: "boot-1", Booted: nodeos.Booted{Slot: "A", Product: "platform-os", Version: "2.0.0", Confirmed: true},
		},
	}, nil
}

// agentFor serves a host and returns its address and the PKI.
func agentFor(t *testing.T, host agent.Controller) (string, *mtls.Directory) {
	t.Helper()
	pki, err := mtls.InitDirectory(filepath.Join(t.TempDir(), "pki"), "uid-1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir, _, err := pki.IssueHost("h1", nil, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	identity, err := mtls.Open(mtls.InDir(dir), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := agent.OpenTrustStore(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := events.New(events.Config{BootID: "boot-1", First: 1, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	logging, err := logs.NewManager(t.Context(), logs.Config{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	server, err := agent.New(agent.Config{
		Identity: identity, ClusterUID: "uid-1", Version: "1.2.3", Controller: host, Events: ring, Logs: logging, Trust: trusted, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener, time.Second) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = logging.Close()
	})
	return listener.Addr().String(), pki
}

func nodeRun(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newNodeCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestNodeStatusShowsTheRunningSystem(t *testing.T) {
	address, pki := agentFor(t, &idleHost{fence: nodeos.Fence{ClusterUID: "uid-1", Epoch: 7}})
	reader, _, err := pki.IssueCaller("reader", mtls.RoleReader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	out, err := nodeRun(t, "status", address, "--host-id", "h1", "--pki-dir", reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"node-1", "agent 1.2.3", "platform-os 2.0.0 from slot A, committed", "epoch 7"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	out, err = nodeRun(t, "status", address, "--host-id", "h1", "--pki-dir", reader, "-o", "json")
	var facts nodeos.HostFacts
	if err != nil || json.Unmarshal([]byte(out), &facts) != nil || facts.Booted.Version != "2.0.0" {
		t.Errorf("json = %s, %v", out, err)
	}
}

func TestNodeStatusRefusesAnotherHostAtTheAddress(t *testing.T) {
	address, pki := agentFor(t, &idleHost{})
	reader, _, err := pki.IssueCaller("reader", mtls.RoleReader, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, err = nodeRun(t, "status", address, "--host-id", "h2", "--pki-dir", reader, "--timeout", "1s")
	if err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("status of h2 at h1's address = %v, want an error that names the address", err)
	}
}

func TestNodeFenceResetIsForAdministrators(t *testing.T) {
	host := &idleHost{fence: nodeos.Fence{ClusterUID: "uid-1", Epoch: 7}}
	address, pki := agentFor(t, host)
	for role, want := range map[mtls.Role]bool{mtls.RoleOperator: false, mtls.RoleAdmin: true} {
		dir, _, err := pki.IssueCaller("someone", role, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		host.fence.Epoch, host.fence.ClusterUID = 7, "uid-1"
		out, err := nodeRun(t, "fence", "reset", address, "--host-id", "h1", "--pki-dir", dir)
		if reset := host.fence == (nodeos.Fence{}); reset != want || (err == nil) != want {
			t.Errorf("%s: reset %v, %v\n%s", role, reset, err, out)
		}
	}
}
