// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/nodeos/mtls"
)

// newPKICommand returns `lockstep pki`: the certificates of hosts and of those
// who may call them.
func newPKICommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "Make the certificates of hosts and of those who call them",
		Long: `Make the certificates of hosts and of those who call them.

There are two authorities: one for hosts, one for callers. Their keys stay in
the directory that "pki init" makes, on an administrator's machine and never in
the cluster. Whoever holds them can be any host, or give anybody any role.`,
	}
	cmd.AddCommand(newPKIInitCommand(), newPKIIssueCommand())
	return cmd
}

func newPKIInitCommand() *cobra.Command {
	var dir, cluster string
	cmd := &cobra.Command{
		Use:     "init",
		Short:   "Make both authorities of a cluster",
		Example: `  lockstep pki init --dir pki --cluster-uid "$(kubectl get ns kube-system -o jsonpath={.metadata.uid})"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := mtls.InitDirectory(dir, cluster, time.Now()); err != nil {
				return err
			}
			return say(cmd.OutOrStdout(), "made the authorities of cluster %s in %s; keep *.key out of the cluster\n", cluster, dir)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "directory of the authorities")
	cmd.Flags().StringVar(&cluster, "cluster-uid", "", "UID of the cluster's kube-system namespace")
	_ = cmd.MarkFlagRequired("cluster-uid")
	return cmd
}

func newPKIIssueCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Make the certificate of a host or of a caller",
	}
	cmd.AddCommand(newPKIIssueHostCommand(), newPKIIssueCallerCommand())
	return cmd
}

func newPKIIssueHostCommand() *cobra.Command {
	var dir, request string
	var addresses []string
	cmd := &cobra.Command{
		Use:   "host ID",
		Short: "Make the certificate of a host, good for 90 days",
		Long: `Make the certificate of a host, good for 90 days.

With --csr the key stays on the host: only the public key is read from the
request, and names in it are ignored.`,
		Example: `  lockstep pki issue host node-13 --dir pki --address 10.0.4.13`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pki, err := mtls.OpenDirectory(dir)
			if err != nil {
				return err
			}
			var public crypto.PublicKey
			if request != "" {
				if public, err = publicKeyOf(request); err != nil {
					return err
				}
			}
			path, leaf, err := pki.IssueHost(args[0], addresses, public, time.Now())
			if err != nil {
				return err
			}
			return say(cmd.OutOrStdout(), "%s: certificate of host %s, until %s\n", path, args[0], leaf.NotAfter.UTC().Format(time.RFC3339))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "directory of the authorities")
	cmd.Flags().StringSliceVar(&addresses, "address", nil, "IP address or DNS name of the host, for people's tools; may be repeated")
	cmd.Flags().StringVar(&request, "csr", "", "certificate request (PEM) that was made on the host")
	return cmd
}

func newPKIIssueCallerCommand() *cobra.Command {
	var dir, role string
	cmd := &cobra.Command{
		Use:     "caller NAME",
		Short:   "Make the certificate of a caller, good for 30 days (admin: 8 hours)",
		Example: `  lockstep pki issue caller reconciler --dir pki --role reconciler`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pki, err := mtls.OpenDirectory(dir)
			if err != nil {
				return err
			}
			parsed, err := mtls.ParseRole(role)
			if err != nil {
				return err
			}
			path, leaf, err := pki.IssueCaller(args[0], parsed, time.Now())
			if err != nil {
				return err
			}
			return say(cmd.OutOrStdout(), "%s: certificate of caller %s with role %s, until %s\n",
				path, args[0], parsed, leaf.NotAfter.UTC().Format(time.RFC3339))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "directory of the authorities")
	cmd.Flags().StringVar(&role, "role", "", "admin, operator, reconciler or reader")
	_ = cmd.MarkFlagRequired("role")
	return cmd
}

// publicKeyOf returns the public key of a request that its key has signed.
func publicKeyOf(path string) (crypto.PublicKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("certificate request: no PEM block of type CERTIFICATE REQUEST in " + path)
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate request %s: %w", path, err)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request %s is not signed by its own key: %w", path, err)
	}
	return request.PublicKey, nil
}

// say writes one line of a command's result.
func say(out io.Writer, format string, args ...any) error {
	if _, err := fmt.Fprintf(out, format, args...); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
