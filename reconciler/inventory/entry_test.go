// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func sampleEntries() []Entry {
	return []Entry{
		{
			Group: "apps", Version: "v1", Kind: "Deployment", Namespace: "web", Name: "api", RunLevel: 30, Order: 7, Created: true,
			Record: Record{
				UID: "2f0c8a2e-4d0e-4f0e-9f6e-0d8f5f6e7a10", ResourceVersion: "4711", Generation: 3, Desired: HashOf("h"),
				Entry: HashOf("e"), Values: HashOf("m"), Status: HashOf("s"), Others: HashOf("f"), Epoch: EpochRead,
			},
			Yields: []Yield{{Pointer: "/spec/replicas", Manager: "horizontal-pod-autoscaler", Value: HashOf("2")}},
		},
		{Version: "v1", Kind: "Namespace", Name: "web", Confirmed: true, Record: Record{Epoch: EpochRead}},
	}
}

// The golden file has format 1, which later versions must read.
func TestInventoryFormatIsStable(t *testing.T) {
	golden, err := os.ReadFile("testdata/inventory-1.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	got, err := encode(sampleEntries())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), got); diff != "" {
		t.Errorf("format 1 changed (-golden +got):\n%s\na change requires a new format that reads the old one", diff)
	}
	back, problems := decode(string(golden))
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
	want := sampleEntries()
	if diff := cmp.Diff([]Entry{want[1], want[0]}, back, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestInventoryOfTheNextVersionIsReadWithItsUnknownFields(t *testing.T) {
	got, problems := decode(`{"v":"v1","k":"ConfigMap","ns":"a","n":"b","u":"uid","new":{"x":[1]}}`)
	if len(problems) > 0 || len(got) != 1 || got[0].UID != "uid" {
		t.Errorf("%+v %v", got, problems)
	}
}

func TestUnreadableLinesAreReportedAndSkipped(t *testing.T) {
	got, problems := decode("{}\nnonsense\n" + `{"v":"v1","k":"ConfigMap","n":"b","h":"short"}` + "\n" + `{"v":"v1","k":"ConfigMap","n":"good"}`)
	if len(got) != 1 || got[0].Name != "good" || len(problems) != 3 {
		t.Errorf("%+v\n%q", got, problems)
	}
	if _, problems := decode(strings.Repeat("x", maxLine+2)); len(problems) != 1 {
		t.Errorf("an overlong line: %q", problems)
	}
}

func FuzzDecode(f *testing.F) {
	text, err := encode(sampleEntries())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("")
	f.Add("{\"v\":\"v1\"}\n\n[]")
	f.Fuzz(func(t *testing.T, data string) {
		entries, _ := decode(data)
		again, err := encode(entries)
		if err != nil {
			t.Fatal(err)
		}
		back, problems := decode(again)
		if len(problems) > 0 {
			t.Fatalf("decoded entries can't be decoded again: %q", problems)
		}
		if diff := cmp.Diff(entries, back, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-first +second):\n%s", diff)
		}
	})
}
