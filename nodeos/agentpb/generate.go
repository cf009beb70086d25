// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package agentpb is the wire between the reconciler and the agents on hosts:
// Go code generated from agent.proto, which has the documentation. Only the
// proto file is edited by hand.
package agentpb

//go:generate protoc --proto_path=. --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative agent.proto
