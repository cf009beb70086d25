// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// ServerConfig returns the TLS configuration of an agent: TLS 1.3 with a required
// caller certificate of this cluster. Each connection uses the current certificates,
// so that a reload needs no restart.
func (s *Store) ServerConfig(clusterUID string) (*tls.Config, error) {
	own, err := HostOf(s.Leaf())
	if err != nil {
		return nil, fmt.Errorf("own certificate %s: %w", s.files.Cert, err)
	}
	if own.ClusterUID != clusterUID {
		return nil, fmt.Errorf("own certificate %s is for cluster %s, want %s", s.files.Cert, own.ClusterUID, clusterUID)
	}
	fresh := func(*tls.ClientHelloInfo) (*tls.Config, error) {
		m := s.current.Load()
		return &tls.Config{
			MinVersion:             tls.VersionTLS13,
			Time:                   s.now,
			Certificates:           []tls.Certificate{m.cert},
			ClientAuth:             tls.RequireAndVerifyClientCert,
			ClientCAs:              m.peers,
			NextProtos:             []string{"h2"},
			SessionTicketsDisabled: true, // a resumed session would skip the checks
			VerifyConnection: func(state tls.ConnectionState) error {
				_, err := CallerIn(state, clusterUID)
				return err
			},
		}, nil
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: fresh,
		NextProtos:         []string{"h2"},
		Time:               s.now,
	}, nil
}

// ClientConfig returns the TLS configuration of one connection to one host: TLS 1.3
// with exactly that host of that cluster as the server. Later calls use reloaded
// certificates.
func (s *Store) ClientConfig(want Host) (*tls.Config, error) {
	if err := errors.Join(CheckID("cluster UID", want.ClusterUID), CheckID("host id", want.HostID)); err != nil {
		return nil, err
	}
	own, err := CallerOf(s.Leaf())
	if err != nil {
		return nil, fmt.Errorf("own certificate %s: %w", s.files.Cert, err)
	}
	if own.ClusterUID != want.ClusterUID {
		return nil, fmt.Errorf("own certificate %s is for cluster %s, host %s is in cluster %s", s.files.Cert, own.ClusterUID, want.HostID, want.ClusterUID)
	}
	m := s.current.Load()
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Time:         s.now,
		Certificates: []tls.Certificate{m.cert},
		RootCAs:      m.peers,
		ServerName:   want.HostID,
		NextProtos:   []string{"h2"},
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf, err := leafOf(state)
			if err != nil {
				return err
			}
			got, err := HostOf(leaf)
			if err != nil {
				return err
			}
			if got != want {
				return refuse(leaf, "identity is %s, want %s", got, want)
			}
			return nil
		},
	}, nil
}

// CallerIn returns the caller of a verified connection; a caller of another cluster
// is rejected.
func CallerIn(state tls.ConnectionState, clusterUID string) (Caller, error) {
	leaf, err := leafOf(state)
	if err != nil {
		return Caller{}, err
	}
	caller, err := CallerOf(leaf)
	if err != nil {
		return Caller{}, err
	}
	if caller.ClusterUID != clusterUID {
		return Caller{}, refuse(leaf, "cluster is %s, want %s", caller.ClusterUID, clusterUID)
	}
	return caller, nil
}

// leafOf returns the verified leaf certificate of the peer.
func leafOf(state tls.ConnectionState) (*x509.Certificate, error) {
	if len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return nil, errors.New("the peer has no certificate from its authority")
	}
	return state.VerifiedChains[0][0], nil
}
