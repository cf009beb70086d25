// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
)

// golden is facts() encoded by version 1 of the protocol. It must never be
// regenerated: agents of that version still send it.
func golden(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "facts.v1.base64"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestFactsOfTheFirstVersionAreDecoded(t *testing.T) {
	var message agentpb.Facts
	if err := proto.Unmarshal(golden(t), &message); err != nil {
		t.Fatal(err)
	}
	want, about := facts()
	got, gotAbout := FactsFromProto(&message)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(about, gotAbout); diff != "" {
		t.Errorf("about (-want +got):\n%s", diff)
	}
}

func TestUnknownFieldsOfANewerAgentAreIgnored(t *testing.T) {
	data := protowire.AppendTag(golden(t), 900, protowire.BytesType)
	data = protowire.AppendBytes(data, []byte("of the future"))
	var message agentpb.Facts
	if err := proto.Unmarshal(data, &message); err != nil {
		t.Fatal(err)
	}
	want, _ := facts()
	got, _ := FactsFromProto(&message)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}
