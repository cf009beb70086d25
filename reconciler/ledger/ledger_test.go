// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

func ignoreExtra() cmp.Option { return cmpopts.IgnoreUnexported(Document{}) }

func fullDocument() Document {
	d := Document{Version: 1, Fence: Fence{ClusterUID: "c", Epoch: 12, Holder: "lockstep-0"}}
	d.SetSlot("uid-1", Slot{
		Node: "node-1", Pool: "pool-1", PoolName: "workers", Attempt: "lockstep-0123456789abcdef", Epoch: 11,
		Target: Image{Version: "2.0.0", Digest: "sha256:22"}, Ref: "r/os@sha256:22", State: Verifying,
		ClaimedAt: noon(), Since: noon().Add(time.Minute), PrevBootID: "b1", PrevDigest: "sha256:11",
		ActivatedAt: noon().Add(30 * time.Second), TrialBootID: "b2", VerifyingSince: noon().Add(time.Minute),
		HealthySince: noon().Add(2 * time.Minute), HealthyEpoch: 12, Nonce: "n",
	})
	p := Pool{Name: "workers", Since: noon(), Canary: Canary{Digest: "sha256:22", Step: 1, Since: noon()}, Resumed: "all"}
	p.AddCommitted(Image{Version: "1.0.0", Digest: "sha256:11"}, noon())
	p.Deny("sha256:33", DeniedHost{NodeUID: "uid-2", Node: "node-2", BootID: "b7", Reason: "FellBack", At: noon()}, 2)
	p.AddRetry(Retry{NodeUID: "uid-3", Digest: "sha256:22", Reason: "DrainTimeout"}, time.Minute, time.Hour, noon())
	p.AddDuration(7 * time.Minute)
	p.AddReleased("uid-4", "lockstep-0123456789abcdef.11", time.Minute, noon())
	d.SetPool("pool-1", p)
	d.setMark("os", Mark{Image: Image{Version: "1.0.0", Digest: "sha256:11"}, At: noon()})
	return d
}

// TestEveryVersionDecodes decodes the golden file of each version. A golden file
// must not change after its version was released.
func TestEveryVersionDecodes(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("testdata", "v1.json"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullDocument(), got, ignoreExtra()); diff != "" {
		t.Errorf("v1.json (-want +got):\n%s", diff)
	}
	again, err := Encode(got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(compact(t, raw), string(again)); diff != "" {
		t.Errorf("v1.json encoded again (-want +got):\n%s", diff)
	}
}

func TestSectionsOfANewerVersionArePreserved(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("testdata", "next.json"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	d = d.Clone()
	d.FreeSlot("uid-1")
	again, err := Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"version":2`, `"leases":{"a":[1,2]}`} {
		if !strings.Contains(string(again), want) {
			t.Errorf("%s is missing in %s", want, again)
		}
	}
}

func compact(t *testing.T, raw []byte) string {
	t.Helper()
	var d Document
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestUnreadableLedgersAreRejected(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"invalid JSON":           "slots",
		"no version":             `{"fence":{"epoch":1}}`,
		"two versions ahead":     `{"version":3,"fence":{"epoch":1}}`,
		"a slot without node":    `{"version":1,"slots":{"":{"attempt":"a","state":"Claimed"}}}`,
		"a slot without attempt": `{"version":1,"slots":{"u":{"state":"Claimed"}}}`,
		"more than MaxBytes":     `{"version":1,"x":"` + strings.Repeat("y", MaxBytes) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Decode([]byte(raw))
			var format *FormatError
			if !errors.As(err, &format) || format.Reason() != "LedgerUnreadable" {
				t.Errorf("error %v, want a FormatError", err)
			}
		})
	}
}

func TestExceedingALimitIsAnError(t *testing.T) {
	t.Parallel()
	var d Document
	for i := range MaxSlots + 1 {
		d.SetSlot(fmt.Sprintf("uid-%d", i), Slot{Node: "n", Attempt: "a", State: Claimed})
	}
	if _, err := Encode(d); err == nil || !strings.Contains(err.Error(), "513 slots, at most 512") {
		t.Errorf("error %v, want one with the limit", err)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	t.Parallel()
	d := fullDocument()
	c := d.Clone()
	p := c.Pools["pool-1"]
	p.Denied[0].Hosts[0].Node = "changed"
	p.Failures[0].Node = "changed"
	p.Released[0].Owner = "changed"
	c.FreeSlot("uid-1")
	delete(c.Marks, "os")
	if diff := cmp.Diff(fullDocument(), d, ignoreExtra()); diff != "" {
		t.Errorf("changing the clone changed the original:\n%s", diff)
	}
}

func TestOneHostCannotDenyAPool(t *testing.T) {
	t.Parallel()
	var p Pool
	for range 5 {
		p.Deny("d", DeniedHost{NodeUID: "a", At: noon()}, 2)
	}
	if d, _ := p.Denial("d"); d.Pool || len(d.Hosts) != 1 {
		t.Errorf("five failures of one host result in %+v", d)
	}
	if n := p.FailuresOf("d"); n != 1 {
		t.Errorf("five failures of one host count as %d", n)
	}
	p.Deny("d", DeniedHost{NodeUID: "b", At: noon()}, 2)
	if d, _ := p.Denial("d"); !d.Pool {
		t.Error("failures of two hosts don't deny the pool")
	}
}

func TestACommittedDigestIsNotDeniedByReports(t *testing.T) {
	t.Parallel()
	var p Pool
	p.AddCommitted(Image{Digest: "d"}, noon())
	for i := range 50 {
		p.Deny("d", DeniedHost{NodeUID: fmt.Sprint(i), At: noon()}, 2)
	}
	if d, _ := p.Denial("d"); d.Pool {
		t.Error("failures deny a digest that a healthy host committed")
	}
}

func TestRetryDelayDoubles(t *testing.T) {
	t.Parallel()
	var p Pool
	var got []time.Duration
	for range 9 {
		at := p.AddRetry(Retry{NodeUID: "a", Digest: "d"}, time.Minute, time.Hour, noon())
		got = append(got, at.Sub(noon()))
	}
	var want []time.Duration
	for _, minutes := range []int{1, 2, 4, 8, 16, 32, 60, 60, 60} {
		want = append(want, time.Duration(minutes)*time.Minute)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("delays (-want +got):\n%s", diff)
	}
	if at := p.AddRetry(Retry{NodeUID: "a", Digest: "other"}, time.Minute, time.Hour, noon()); at.Sub(noon()) != time.Minute {
		t.Errorf("delay for another digest is %s", at.Sub(noon()))
	}
	p.ClearRetry("a")
	if _, held := p.Retry("a", "other"); held {
		t.Error("the retry remains after ClearRetry")
	}
}

func TestListsKeepTheNewestEntries(t *testing.T) {
	t.Parallel()
	var p Pool
	for i := range MaxCommitted + 5 {
		p.AddCommitted(Image{Digest: fmt.Sprint(i)}, noon())
		p.AddDuration(time.Duration(i))
	}
	if len(p.Committed) != MaxCommitted || p.Committed[MaxCommitted-1].Digest != "14" || p.HasCommitted("4") {
		t.Errorf("committed %v", p.Committed)
	}
	if len(p.Durations) != MaxDurations {
		t.Errorf("durations %v", p.Durations)
	}
}

func TestParseOwner(t *testing.T) {
	t.Parallel()
	s := Slot{Attempt: "lockstep-ab", Epoch: 41}
	if a, e := ParseOwner(s.Owner()); a != s.Attempt || e != s.Epoch {
		t.Errorf("%s is parsed as attempt %s, epoch %d", s.Owner(), a, e)
	}
	for _, invalid := range []string{"", "lockstep-ab", "lockstep-ab.", "lockstep-ab.x", "lockstep-ab.-1", "."} {
		if a, _ := ParseOwner(invalid); a != "" {
			t.Errorf("%q is parsed as attempt %q", invalid, a)
		}
	}
}

func TestNextFence(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stored   Fence
		reported []uint64
		want     uint64
		wrong    bool
	}{
		"starts at one":                                {Fence{}, nil, 1, false},
		"rises at each acquisition":                    {Fence{"c", 4, "x"}, nil, 5, false},
		"rises above what agents report":               {Fence{"c", 4, "x"}, []uint64{2, 9, 3}, 10, false},
		"stays above what is stored":                   {Fence{"c", 40, "x"}, []uint64{2, 9, 3}, 41, false},
		"one epoch far above the others is ignored":    {Fence{"c", 4, "x"}, []uint64{3, 4, 1 << 40}, 5, false},
		"the highest possible epoch is ignored":        {Fence{"c", 4, "x"}, []uint64{4, 4, 1<<64 - 1}, 5, false},
		"a lost ledger uses the median of the reports": {Fence{}, []uint64{5000, 5001, 4999}, 5002, false},
		"a lost ledger with one false report":          {Fence{}, []uint64{5000, 5001, 1 << 50}, 5002, false},
		"a jump of a thousand is accepted":             {Fence{"c", 4, "x"}, []uint64{4, 4, 1004}, 1005, false},
		"a ledger of another cluster is an error":      {Fence{"other", 4, "x"}, nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := nextFence(tc.stored, "c", tc.reported)
			if (err != nil) != tc.wrong || got.Epoch != tc.want {
				t.Errorf("epoch %d, error %v; want %d", got.Epoch, err, tc.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, name := range []string{"v1.json", "next.json"} {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"version":1,"slots":{"u":{"attempt":"a","state":"?"}},"fence":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := Decode(raw)
		if err != nil {
			return
		}
		again, err := Encode(d)
		if err != nil {
			t.Fatalf("encode the decoded document: %v", err)
		}
		if _, err := Decode(again); err != nil {
			t.Fatalf("decode the encoded document: %v", err)
		}
	})
}
