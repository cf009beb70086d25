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

// newPKICommand returns `lockstep pki`.
func newPKICommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "Issue certificates for hosts and their callers",
		Long: `Issue certificates for hosts and their callers.

There are two certificate authorities: one for hosts, one for callers. Their keys
are in the directory that "pki init" creates. Keep it on an administrator's
machine, never in the cluster: the keys can impersonate any host and any caller.`,
	}
	cmd.AddCommand(newPKIInitCommand(), newPKIIssueCommand())
	return cmd
}

func newPKIInitCommand() *cobra.Command {
	var dir, cluster string
	cmd := &cobra.Command{
		Use:     "init",
		Short:   "Create the certificate authorities of a cluster",
		Example: `  lockstep pki init --dir pki --cluster-uid "$(kubectl get ns kube-system -o jsonpath={.metadata.uid})"`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := mtls.InitDirectory(dir, cluster, time.Now()); err != nil {
				return err
			}
			return printf(cmd.OutOrStdout(), "created the certificate authorities of cluster %s in %s; keep *.key out of the cluster\n", cluster, dir)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "directory of the certificate authorities")
	cmd.Flags().StringVar(&cluster, "cluster-uid", "", "UID of the cluster's kube-system namespace")
	_ = cmd.MarkFlagRequired("cluster-uid")
	return cmd
}

func newPKIIssueCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Issue a certificate",
	}
	cmd.AddCommand(newPKIIssueHostCommand(), newPKIIssueCallerCommand())
	return cmd
}

func newPKIIssueHostCommand() *cobra.Command {
	var dir, request string
	var addresses []string
	cmd := &cobra.Command{
		Use:   "host ID",
		Short: "Issue the certificate of a host, valid for 90 days",
		Long: `Issue the certificate of a host, valid for 90 days.

With --csr the private key stays on the host: only the public key is read from the
request; its names are ignored.`,
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
			return printf(cmd.OutOrStdout(), "%s: certificate of host %s, until %s\n", path, args[0], leaf.NotAfter.UTC().Format(time.RFC3339))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "directory of the certificate authorities")
	cmd.Flags().StringSliceVar(&addresses, "address", nil, "IP address or DNS name of the host; may be repeated")
	cmd.Flags().StringVar(&request, "csr", "", "certificate signing request (PEM) created on the host")
	return cmd
}

func newPKIIssueCallerCommand() *cobra.Command {
	var dir, role string
	cmd := &cobra.Command{
		Use:     "caller NAME",
		Short:   "Issue the certificate of a caller, valid for 30 days (admin: 8 h)",
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
			return printf(cmd.OutOrStdout(), "%s: certificate of caller %s with role %s, until %s\n",
				path, args[0], parsed, leaf.NotAfter.UTC().Format(time.RFC3339))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "directory of the certificate authorities")
	cmd.Flags().StringVar(&role, "role", "", "admin, operator, reconciler or reader")
	_ = cmd.MarkFlagRequired("role")
	return cmd
}

// publicKeyOf returns the public key of a certificate signing request.
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

// say writes part of a command's result.
func printf(out io.Writer, format string, args ...any) error {
	if _, err := fmt.Fprintf(out, format, args...); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
