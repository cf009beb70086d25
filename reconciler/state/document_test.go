// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-dev/lockstep/payload"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files")

// full has every field.
func full() document {
	at := time.Unix(1700000000, 0).UTC()
	id := payload.Identity{Version: "1.1.0", Image: "registry.example.com/platform@sha256:bb"}
	return document{
		Sources: map[string]Source{"fleet": {
			URL: "ssh://git@git.example.com/fleet.git", Cluster: "prod", Revision: "main@sha1:0123", Tree: "sha256:aa",
			Subject: "raise the platform", Signer: "admin-1 (ssh SHA256:abc)",
			SignedBy: Signer{Name: "admin-1", Format: "ssh", Fingerprint: "SHA256:abc"}, Time: at,
			Objects: map[string]string{"NodeOS/workers": "sha256:cc"}, UIDs: map[string]string{"NodeOS/workers": "uid-1"},
			Manifests: map[string]string{"NodeOS/workers": "dd"}, SpentRewind: "0123", Published: Published{Key: "k", Commit: "4567"},
		}},
		Releases: map[string]Release{"platform": {
			Product: "platform", Capabilities: []string{"console"}, SpentRollback: "1.0.0\nreason",
			Accepted: &Accepted{
				Identity: id, Revision: "main@sha1:0123", State: "Updating", Selection: "{}",
				Waits: []Wait{{Object: Object{Group: "apps", Kind: "Deployment", Namespace: "web", Name: "api"}, Spent: metav1.Duration{Duration: time.Minute}, Running: at}},
			},
			Completed: []Completed{{Identity: payload.Identity{Version: "1.0.0", Path: "releases/1.0.0"}, VersionHash: "sha256:ee", Time: at}},
			Deletion:  "Prune", ServiceAccount: "lockstep-applier", Unmanaged: []Object{{Kind: "ConfigMap", Namespace: "web", Name: "edited"}},
			Pools: map[string]string{"workers": "sha256:ff"},
		}},
	}
}

// Later versions read the stored form: a change of these files needs a new format.
func TestTheStoredFormIsTheGoldenFiles(t *testing.T) {
	doc := full()
	doc.sequence = map[string]int64{"fleet": 1}
	doc.Releases["platform"].Accepted.Signatures = []string{"sha256:dd"}
	for _, r := range doc.records() {
		raw, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		var pretty any
		if err := json.Unmarshal(raw, &pretty); err != nil {
			t.Fatal(err)
		}
		got, err := json.MarshalIndent(pretty, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		golden := filepath.Join("testdata", r.object()+".golden.json")
		if *rewrite {
			if err := os.WriteFile(golden, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("stored form (-golden +got):\n%s", diff)
		}
		read, err := decodeRecord(want)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, read); diff != "" {
			t.Errorf("%s as read (-want +got):\n%s", golden, diff)
		}
	}
}

func TestTheSingleDocumentOfFormat2IsRead(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "format2.json"))
	if err != nil {
		t.Fatal(err)
	}
	var o objects
	got, err := o.decodeMarker(raw)
	if err != nil || !o.single || o.marked {
		t.Fatalf("decode: %v, single %v, marked %v", err, o.single, o.marked)
	}
	if diff := cmp.Diff(full(), got, cmp.AllowUnexported(document{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("format 2 as read (-want +got):\n%s", diff)
	}
}

func TestThisFormatAndTheNextAreRead(t *testing.T) {
	for _, raw := range []string{
		`{"format":4,"kind":"GitSource","name":"a","source":{"revision":"r","time":"2026-01-01T00:00:00Z","objects":{}}}`,
		`{"format":5,"kind":"GitSource","name":"a","source":{"revision":"r","time":"2026-01-01T00:00:00Z","objects":{},"new":1}}`,
	} {
		if r, err := decodeRecord([]byte(raw)); err != nil || r.Source == nil || r.Source.Revision != "r" {
			t.Errorf("decode(%s) = %+v, %v", raw, r, err)
		}
	}
	for raw, want := range map[string]string{
		`{"format":2}`: "format 2 was written by an earlier version; this version reads 4 to 5",
		`{"format":6}`: "format 6 was written by a later version; this version reads 4 to 5",
		`{"format":4,"kind":"GitSource","source":{}}`:                          "it has no name",
		`{"format":4,"kind":"GitSource","name":"a","release":{}}`:              `kind "GitSource" doesn't match its content`,
		`{"format":4,"kind":"Host","name":"a","source":{}}`:                    `kind "Host" doesn't match its content`,
		`{"format":4,"kind":"GitSource","name":"a","source":{},"release":{}}`:  `kind "GitSource" doesn't match its content`,
		`{"format":4,"kind":"ClusterRelease","name":"a","source":{"time":""}}`: "decode: ",
		`{`: "decode: ",
	} {
		if _, err := decodeRecord([]byte(raw)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("decode(%s): %v, want %q", raw, err, want)
		}
	}
	for raw, want := range map[string]string{
		`{"format":0}`: "format 0 was written by an earlier version; this version reads 4 to 5",
		`{"format":6}`: "format 6 was written by a later version; this version reads 4 to 5",
	} {
		var o objects
		if _, err := o.decodeMarker([]byte(raw)); err == nil || err.Error() != want {
			t.Errorf("marker %s: %v, want %q", raw, err, want)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range full().records() {
		raw, err := r.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := decodeRecord(raw)
		if err != nil {
			return
		}
		if r.deleted() || r.Name == "" || len(r.object()) > maxName {
			t.Errorf("accepted %+v", r)
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRecord(again); err != nil {
			t.Errorf("the encoded record isn't readable: %v", err)
		}
	})
}

// A process may end between the writes of two sources.
func TestAnObjectInTwoSourcesBelongsToTheLastClaim(t *testing.T) {
	before := document{}.clone()
	before.claim("old", Source{Objects: map[string]string{"NodeOS/a": "1", "NodeOS/b": "2"}})
	next := before.clone()
	next.claim("new", Source{Objects: map[string]string{"NodeOS/a": "3"}})
	writes := changes(before, next)
	if len(writes) != 2 || writes[0].Name != "new" {
		t.Fatalf("writes %+v, want the new source first", writes)
	}
	for written := range len(writes) + 1 {
		doc := before.clone()
		for _, w := range writes[:written] {
			doc.set(w)
		}
		doc.settle()
		want := map[string]string{"old": "NodeOS/a NodeOS/b", "new": ""}
		if written > 0 {
			want = map[string]string{"old": "NodeOS/b", "new": "NodeOS/a"}
		}
		for name, objects := range want {
			var got []string
			for _, key := range []string{"NodeOS/a", "NodeOS/b"} {
				if _, ok := doc.Sources[name].Objects[key]; ok {
					got = append(got, key)
				}
			}
			if strings.Join(got, " ") != objects {
				t.Errorf("after %d writes %s has %v, want %s", written, name, got, objects)
			}
		}
	}
	// A repeated apply of the same objects is no new claim.
	same := next.clone()
	same.claim("old", next.Sources["old"])
	if len(changes(next, same)) != 0 {
		t.Errorf("an unchanged source is written: %+v", changes(next, same))
	}
}

func TestOnlyChangedRecordsAreWritten(t *testing.T) {
	before := full().clone()
	next := before.clone()
	r := next.Releases["platform"]
	r.Product = "other"
	next.Releases["platform"] = r
	next.Releases["second"] = Release{}
	delete(next.Sources, "fleet")
	var got []string
	for _, c := range changes(before, next) {
		got = append(got, fmt.Sprintf("%s deleted=%v", c.id(), c.deleted()))
	}
	want := []string{"ClusterRelease/platform deleted=false", "ClusterRelease/second deleted=false", "GitSource/fleet deleted=true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

func TestALongNameIsShortened(t *testing.T) {
	a, b := strings.Repeat("a", 253), strings.Repeat("a", 252)+"b"
	if SourceObject("fleet") != "lockstep-state-source-fleet" || ReleaseObject("platform") != "lockstep-state-release-platform" {
		t.Errorf("names %s, %s", SourceObject("fleet"), ReleaseObject("platform"))
	}
	if SourceObject(a) == SourceObject(b) || len(SourceObject(a)) > maxName {
		t.Errorf("names %s, %s", SourceObject(a), SourceObject(b))
	}
}

func TestARecordOverTheLimitNamesItsObject(t *testing.T) {
	src := Source{Objects: map[string]string{"NodeOS/" + strings.Repeat("a", MaxBytes): ""}}
	_, err := record{Format: Format, Kind: "GitSource", Name: "fleet", Source: &src}.encode()
	var limit *limitError
	if !errors.As(err, &limit) || !strings.Contains(err.Error(), "persist GitSource/fleet: ") || limit.Retriable() {
		t.Errorf("error %v", err)
	}
}
