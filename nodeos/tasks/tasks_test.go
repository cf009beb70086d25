// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/events"
	"github.com/lockstep-dev/lockstep/nodeos/host/sim"
)

// source is a fake ImageSource with fixed results.
type source struct {
	verified Verified
	err      error
	content  []byte
	fetches  int
}

func (s *source) Verify(context.Context, nodeos.ImageRef) (Verified, error) { return s.verified, s.err }

func (s *source) Fetch(context.Context, Verified) (io.ReadCloser, error) {
	s.fetches++
	return io.NopCloser(bytes.NewReader(s.content)), nil
}

// emptyPlatform is a platform with only an optional configuration.
type emptyPlatform struct{ config []byte }

func (n emptyPlatform) Configuration(context.Context) ([]byte, error)   { return n.config, nil }
func (emptyPlatform) Hostname(context.Context) (string, error)          { return "", nil }
func (emptyPlatform) ExternalIPs(context.Context) ([]netip.Addr, error) { return nil, nil }

// env is a machine, a source of version 2.0.0, and the tasks.
type env struct {
	t      *testing.T
	host   *sim.Host
	source *source
	tasks  map[string]nodeos.TaskSetupFunc
	rt     runtime
	image  nodeos.Image
}

// runtime implements the Runtime methods that these tasks use.
type runtime struct {
	nodeos.Runtime
	ring   *events.Ring
	config *[]byte
}

func (r runtime) Events() nodeos.EventStream { return r.ring }
func (r runtime) Config() nodeos.Provider    { return nil }
func (r runtime) SetConfig(data []byte) error {
	if bytes.HasPrefix(data, []byte("bad")) {
		return errors.New("invalid configuration")
	}
	*r.config = data
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func document(t *testing.T, version string) (nodeos.Image, []byte) {
	t.Helper()
	data, err := json.Marshal(sim.Document{Product: "os", Version: version})
	must(t, err)
	image, err := sim.ImageOf("r", data)
	must(t, err)
	return image, data
}

func newEnv(t *testing.T, platform emptyPlatform) *env {
	t.Helper()
	dir := t.TempDir()
	first, content := document(t, "1.0.0")
	must(t, sim.Create(dir, first, content))
	_, err := sim.Boot(t.Context(), dir, sim.BootOptions{})
	must(t, err)
	host, err := sim.Open(sim.Config{Dir: dir, Capacity: 1 << 20})
	must(t, err)
	image, content := document(t, "2.0.0")
	src := &source{verified: Verified{Image: image}, content: content}
	all, err := All(Config{Host: host, Images: src, Platform: platform})
	must(t, err)
	ring, err := events.New(events.Config{BootID: "b", Now: time.Now})
	must(t, err)
	return &env{t: t, host: host, source: src, tasks: all, image: image, rt: runtime{ring: ring, config: new([]byte)}}
}

// run runs a task of an upgrade to version 2.0.0.
func (s *env) run(name string, memory nodeos.Memory) error {
	s.t.Helper()
	call := nodeos.TaskCall{
		OperationID: "op", Memory: memory,
		Request: nodeos.UpgradeRequest{Order: nodeos.Order{OperationID: "op"}, Image: s.image.Ref, Product: "os", Version: "2.0.0"},
	}
	f, shown := s.tasks[name](nodeos.SequenceUpgrade, call)
	if shown != name {
		s.t.Errorf("task %s has display name %s", name, shown)
	}
	return f(s.t.Context(), zap.NewNop(), s.rt)
}

func TestEveryTaskOfEveryPlanIsRegistered(t *testing.T) {
	s := newEnv(t, emptyPlatform{})
	used := map[string]bool{}
	o := nodeos.Order{OperationID: "op", Caller: "me"}
	for _, seq := range nodeos.Sequences() {
		for _, r := range []nodeos.Request{
			nodeos.PlainRequest{Order: o},
			nodeos.RollbackRequest{Order: o},
			nodeos.ResetRequest{Order: o, Graceful: true},
			nodeos.UpgradeRequest{Order: o, Image: s.image.Ref, Version: "2.0.0"},
		} {
			plan, err := nodeos.Plan(seq, nodeos.ModeMetal, r)
			if err != nil {
				continue
			}
			for _, p := range plan {
				for _, task := range slices.Concat(p.Tasks, p.Undo) {
					used[task.Name] = true
				}
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(s.tasks))); diff != "" {
		t.Errorf("(-used by plans +registered):\n%s", diff)
	}
	if _, err := All(Config{}); err == nil {
		t.Error("tasks without a host were accepted")
	}
}

func TestPrecheckRefusesInvalidImages(t *testing.T) {
	for name, tc := range map[string]struct {
		memory nodeos.Memory
		change func(s *env)
		reason string
	}{
		"a valid image":          {reason: ""},
		"a denied digest":        {memory: nodeos.Memory{Denied: []nodeos.Denial{{}}}, reason: "DeniedDigest"},
		"no signature":           {change: func(s *env) { s.source.err = nodeos.Refuse("Unsigned", "no signature") }, reason: "Unsigned"},
		"another digest":         {change: func(s *env) { s.source.verified.Image.Ref.Digest = "sha256:other" }, reason: "WrongDigest"},
		"another product":        {change: func(s *env) { s.source.verified.Image.Product = "x" }, reason: "NameMismatch"},
		"another version":        {change: func(s *env) { s.source.verified.Image.Version = "2.0.1" }, reason: "NameMismatch"},
		"no version":             {change: func(s *env) { s.source.verified.Image.Version = "" }, reason: "NameMismatch"},
		"below the high-water":   {memory: nodeos.Memory{HighWater: map[string]string{"os": "2.0.1"}}, reason: "BelowFloor"},
		"another product's mark": {memory: nodeos.Memory{HighWater: map[string]string{"other": "9.0.0"}}, reason: ""},
		"another trial":          {memory: nodeos.Memory{Trial: &nodeos.Trial{OperationID: "else"}}, reason: "Unconfirmed"},
		"its own trial":          {memory: nodeos.Memory{Trial: &nodeos.Trial{OperationID: "op"}}, reason: ""},
		"no room":                {change: func(s *env) { s.source.verified.Image.Size = 1<<20 + 1 }, reason: "NoSpace"},
		"the running image": {change: func(s *env) {
			s.image, _ = document(t, "1.0.0")
			s.source.verified.Image = s.image
			s.source.verified.Image.Version = "2.0.0"
		}, reason: "AlreadyBooted"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, emptyPlatform{})
			if len(tc.memory.Denied) > 0 {
				tc.memory.Denied[0].Digest = s.image.Ref.Digest
			}
			if tc.change != nil {
				tc.change(s)
			}
			err := s.run(nodeos.TaskPrecheckImage, tc.memory)
			if got := nodeos.ReasonOf(err, ""); got != tc.reason || (err == nil) != (tc.reason == "") {
				t.Errorf("got %v, want %q", err, tc.reason)
			}
			if s.source.fetches > 0 {
				t.Error("the precheck fetched the image")
			}
		})
	}
}

func TestUnsignedImageIsNeverFetched(t *testing.T) {
	s := newEnv(t, emptyPlatform{})
	s.source.err = nodeos.Refuse("Unsigned", "no signature")
	if err := s.run(nodeos.TaskStageImage, nodeos.Memory{}); nodeos.ReasonOf(err, "") != "Unsigned" || s.source.fetches != 0 {
		t.Errorf("got %v after %d fetches", err, s.source.fetches)
	}
}

func TestStagingFetchesTheVerifiedImageOnce(t *testing.T) {
	s := newEnv(t, emptyPlatform{})
	good := s.source.content
	s.source.content = bytes.Replace(good, []byte("2.0.0"), []byte("6.6.6"), 1)
	if err := s.run(nodeos.TaskStageImage, nodeos.Memory{}); err == nil {
		t.Fatal("bytes other than the verified ones were staged")
	}
	s.source.content = good
	s.source.fetches = 0
	for range 3 {
		must(t, s.run(nodeos.TaskStageImage, nodeos.Memory{}))
	}
	if s.source.fetches != 1 {
		t.Errorf("%d fetches", s.source.fetches)
	}
}

func TestBootSwitchRequiresADeadManTimer(t *testing.T) {
	s := newEnv(t, emptyPlatform{})
	must(t, s.run(nodeos.TaskStageImage, nodeos.Memory{}))
	if err := s.run(nodeos.TaskSetNextBoot, nodeos.Memory{}); err == nil || !strings.Contains(err.Error(), "not armed") {
		t.Errorf("got %v", err)
	}
	armed := nodeos.Memory{Trial: &nodeos.Trial{OperationID: "op", Image: s.image}}
	must(t, s.run(nodeos.TaskSetNextBoot, armed))
	must(t, s.run(nodeos.TaskClearNextBoot, armed))
}

func TestUnexpectedOSIsNeitherVerifiedNorCommitted(t *testing.T) {
	s := newEnv(t, emptyPlatform{})
	if err := s.run(nodeos.TaskVerifyBooted, nodeos.Memory{}); nodeos.ReasonOf(err, "") != "WrongSystem" {
		t.Errorf("verify: %v", err)
	}
	if err := s.run(nodeos.TaskCommit, nodeos.Memory{}); err == nil {
		t.Error("committed")
	}
}

func TestConfigurationIsLoadedOrRejected(t *testing.T) {
	s := newEnv(t, emptyPlatform{config: []byte("good")})
	must(t, s.run(nodeos.TaskLoadConfig, nodeos.Memory{}))
	if string(*s.rt.config) != "good" {
		t.Errorf("the configuration is %q", *s.rt.config)
	}
	s = newEnv(t, emptyPlatform{config: []byte("bad")})
	if err := s.run(nodeos.TaskLoadConfig, nodeos.Memory{}); err == nil {
		t.Error("an invalid configuration was loaded")
	}
	s = newEnv(t, emptyPlatform{})
	must(t, s.run(nodeos.TaskLoadConfig, nodeos.Memory{}))
}
