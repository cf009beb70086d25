// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/fleet"
	"github.com/lockstep-dev/lockstep/nodeos/mtls"
)

// defaultAgentPort is the port on which agents listen by default.
const defaultAgentPort = 50700

// newNodeCommand returns `lockstep node`: requests to a host's agent that need
// no Kubernetes.
func newNodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Manage a host through its agent, without Kubernetes",
	}
	fence := &cobra.Command{Use: "fence", Short: "Manage the fence of a host"}
	fence.AddCommand(newNodeFenceResetCommand())
	cmd.AddCommand(newNodeStatusCommand(), fence)
	return cmd
}

// nodeDial has the flags for connecting to an agent.
type nodeDial struct {
	pki, hostID string
	timeout     time.Duration
}

func (d *nodeDial) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.pki, "pki-dir", "", "directory with the caller's certificate (lockstep pki issue caller)")
	cmd.Flags().StringVar(&d.hostID, "host-id", "", "id of the host; any other host at the address is rejected")
	cmd.Flags().DurationVar(&d.timeout, "timeout", 15*time.Second, "time limit for the request")
	_ = cmd.MarkFlagRequired("pki-dir")
	_ = cmd.MarkFlagRequired("host-id")
}

// with connects to the agent at an address, calls f and disconnects.
func (d *nodeDial) with(ctx context.Context, address string, f func(context.Context, *fleet.Fleet) error) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(address, strconv.Itoa(defaultAgentPort))
	}
	identity, err := mtls.Open(mtls.InDir(d.pki), time.Now)
	if err != nil {
		return invalid(err)
	}
	own, err := mtls.CallerOf(identity.Leaf())
	if err != nil {
		return invalid(err)
	}
	changed := make(chan struct{}, 1)
	hosts, err := fleet.New(fleet.Config{
		Identity: identity, ClusterUID: own.ClusterUID, Version: version, Now: time.Now,
		Changed: func(string) {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	hosts.SetTargets([]fleet.Target{{HostID: d.hostID, Addresses: []string{address}}})
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- hosts.Run(ctx) }()
	err = d.connected(ctx, hosts, changed)
	if err == nil {
		err = f(ctx, hosts)
	}
	cancel()
	return errors.Join(err, <-done)
}

// connected waits for the connection, or returns why there is none.
func (d *nodeDial) connected(ctx context.Context, hosts *fleet.Fleet, changed <-chan struct{}) error {
	for {
		select {
		case <-changed:
		case <-ctx.Done():
		}
		state, _ := hosts.State(d.hostID)
		if state.Connected {
			return nil
		}
		// These errors don't resolve by retrying.
		var version *fleet.VersionError
		var identity *mtls.IdentityError
		if ctx.Err() != nil || errors.As(state.Err, &version) || errors.As(state.Err, &identity) {
			return state.Err
		}
	}
}

func newNodeStatusCommand() *cobra.Command {
	var dial nodeDial
	var output string
	cmd := &cobra.Command{
		Use:     "status ADDRESS",
		Short:   "Show the state of a host",
		Example: `  lockstep node status 10.0.4.13 --host-id node-13 --pki-dir pki/callers/ada`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return invalid(fmt.Errorf("output %q: want json", output))
			}
			return dial.with(cmd.Context(), args[0], func(ctx context.Context, hosts *fleet.Fleet) error {
				facts, about, err := hosts.Facts(ctx, dial.hostID)
				if err != nil {
					return err
				}
				if output == "json" {
					return writeJSON(cmd.OutOrStdout(), facts)
				}
				return writeFacts(cmd.OutOrStdout(), facts, about.Version, about.TrustVersion)
			})
		},
	}
	dial.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "json")
	return cmd
}

func writeJSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// writeFacts prints the facts as a table.
func writeFacts(out io.Writer, f nodeos.HostFacts, agent string, trust int64) error {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", name, sanitize.Line(fmt.Sprintf(format, args...)))
	}
	confirmed := "committed"
	if !f.Booted.Confirmed {
		confirmed = "on trial"
	}
	row("host", "%s (node %s, %s, backend %s, agent %s)", f.HostID, f.NodeName, f.Mode, f.Backend, agent)
	row("running", "%s %s from slot %s, %s", f.Booted.Product, f.Booted.Version, f.Booted.Slot, confirmed)
	row("boot", "%s", f.BootID)
	if s := f.Staged; s != nil {
		row("staged", "%s %s in slot %s", s.Image.Product, s.Image.Version, s.Name)
	}
	if s := f.Previous; s != nil {
		row("previous", "%s %s in slot %s", s.Image.Product, s.Image.Version, s.Name)
	}
	if t := f.Trial; t != nil {
		row("trial", "%s until %s, then %s", t.Image.Version, t.Deadline.UTC().Format(time.RFC3339), t.OnDeadline)
	}
	for _, o := range []struct {
		name string
		op   *nodeos.OperationStatus
	}{{"operation", f.Operation}, {"last", f.Last}} {
		if o.op != nil {
			row(o.name, "%s %s %s, phase %s %d/%d %s", o.op.ID, o.op.Sequence, o.op.State, o.op.Phase, o.op.PhaseIndex, o.op.PhaseCount, o.op.Message)
		}
	}
	for _, d := range f.Denied {
		row("denied", "%s since %s: %s", d.Digest, d.At.UTC().Format(time.RFC3339), d.Why)
	}
	row("fence", "epoch %d of cluster %s", f.Fence.Epoch, f.Fence.ClusterUID)
	row("trust", "document version %d", trust)
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

func newNodeFenceResetCommand() *cobra.Command {
	var dial nodeDial
	cmd := &cobra.Command{
		Use:   "reset ADDRESS",
		Short: "Reset the highest fence stored on a host",
		Long: `Reset the highest fence stored on a host.

A host rejects orders with a fence lower than the stored one. After a cluster is
rebuilt or its etcd restored, every leader may have a lower fence; reset the fence
then. Requires the role admin.`,
		Example: `  lockstep node fence reset 10.0.4.13 --host-id node-13 --pki-dir pki/callers/ada`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return dial.with(cmd.Context(), args[0], func(ctx context.Context, hosts *fleet.Fleet) error {
				facts, _, err := hosts.Facts(ctx, dial.hostID)
				if err != nil {
					return err
				}
				if facts.Fence == (nodeos.Fence{}) {
					return printf(cmd.OutOrStdout(), "%s: no fence is stored\n", dial.hostID)
				}
				if err := hosts.ResetFence(ctx, dial.hostID, facts.Fence); err != nil {
					return err
				}
				return printf(cmd.OutOrStdout(), "%s: reset fence epoch %d of cluster %s\n", dial.hostID, facts.Fence.Epoch, sanitize.Line(facts.Fence.ClusterUID))
			})
		},
	}
	dial.flags(cmd)
	return cmd
}
