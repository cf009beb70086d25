// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap/zapcore"

	"github.com/lockstep-dev/lockstep/nodeos"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newManager(t *testing.T, bytes int) *Manager {
	t.Helper()
	m, err := NewManager(t.Context(), Config{Bytes: bytes, Services: 3, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func write(t *testing.T, m *Manager, service string, texts ...string) {
	t.Helper()
	w, err := m.ServiceLog(service).Writer()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range texts {
		if _, err := io.WriteString(w, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, m *Manager, service string, opts ...nodeos.LogOption) string {
	t.Helper()
	r, err := m.ServiceLog(service).Reader(opts...)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestReaderReturnsLinesAndEnds(t *testing.T) {
	m := newManager(t, 0)
	write(t, m, "kubelet", "one\ntw", "o\nthree")
	for name, tc := range map[string]struct {
		opts []nodeos.LogOption
		want string
	}{
		"all":              {nil, "one\ntwo\nthree\n"},
		"the last two":     {[]nodeos.LogOption{nodeos.WithTailLines(2)}, "two\nthree\n"},
		"none":             {[]nodeos.LogOption{nodeos.WithTailLines(0)}, ""},
		"more than stored": {[]nodeos.LogOption{nodeos.WithTailLines(99)}, "one\ntwo\nthree\n"},
	} {
		if got := read(t, m, "kubelet", tc.opts...); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestLogIsBoundedAndKeepsTheNewestLines(t *testing.T) {
	m := newManager(t, 100)
	for i := range 1000 {
		write(t, m, "kubelet", fmt.Sprintf("line %04d\n", i))
	}
	if got := read(t, m, "kubelet"); len(got) > 100 || !strings.HasSuffix(got, "line 0999\n") || !strings.HasPrefix(got, "line 0990\n") {
		t.Errorf("got %d bytes: %q", len(got), got)
	}
}

func TestLongLinesAreSplit(t *testing.T) {
	m := newManager(t, 0)
	write(t, m, "kubelet", strings.Repeat("x", MaxLine*2+5), "\n")
	lines := strings.Split(strings.TrimSuffix(read(t, m, "kubelet"), "\n"), "\n")
	if len(lines) != 3 || len(lines[0]) != MaxLine || len(lines[2]) != 5 {
		t.Errorf("got %d lines", len(lines))
	}
}

func TestUnknownAndTooManyServicesAreErrors(t *testing.T) {
	m := newManager(t, 0)
	if _, err := m.ServiceLog("nobody").Reader(); err == nil || !strings.Contains(err.Error(), `no log of service "nobody"`) {
		t.Errorf("reader of an unknown service: %v", err)
	}
	if _, err := m.ServiceLog("../etc").Writer(); err == nil {
		t.Error("service name ../etc was accepted")
	}
	for i := range 3 {
		write(t, m, fmt.Sprint("s", i), "x\n")
	}
	if _, err := m.ServiceLog("s3").Writer(); err == nil {
		t.Error("a fourth service was accepted over a limit of three")
	}
	if diff := cmp.Diff([]string{"s0", "s1", "s2"}, m.Services()); diff != "" {
		t.Error(diff)
	}
}

func TestFollowerReceivesLaterLinesUntilItCloses(t *testing.T) {
	m := newManager(t, 0)
	write(t, m, "kubelet", "old\n")
	r, err := m.ServiceLog("kubelet").Reader(nodeos.WithFollow(), nodeos.WithTailLines(1))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(r)
	for _, want := range []string{"old\n", "new\n", "newer\n"} {
		if want != "old\n" {
			write(t, m, "kubelet", want)
		}
		if got, err := lines.ReadString('\n'); got != want || err != nil {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	done := make(chan error)
	go func() {
		_, err := lines.ReadString('\n')
		done <- err
	}()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("a closed follower still reads")
	}
}

func TestSlowFollowerReceivesTheNumberOfLostLines(t *testing.T) {
	m := newManager(t, 50)
	write(t, m, "kubelet", "first\n")
	r, err := m.ServiceLog("kubelet").Reader(nodeos.WithFollow())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		write(t, m, "kubelet", fmt.Sprintf("line %04d\n", i))
	}
	if got, err := bufio.NewReader(r).ReadString('\n'); err != nil || got != "--- 96 lines lost: the reader is too slow ---\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestParseSupportsTheUsualFormats(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := time.Date(2021, 10, 19, 12, 42, 37, 0, time.UTC)
	for name, tc := range map[string]struct {
		text string
		want nodeos.LogEvent
	}{
		"text":           {"hello there", nodeos.LogEvent{Msg: "hello there", Time: now}},
		"JSON":           {`{"level":"warning","time":"2021-10-19T12:42:37Z","msg":"m","a":"b"}`, nodeos.LogEvent{Msg: "m", Time: at, Level: zapcore.WarnLevel, Fields: map[string]any{"a": "b"}}},
		"text with JSON": {`[talos] up {"ts":1634647357,"x":1}`, nodeos.LogEvent{Msg: "[talos] up", Time: at, Fields: map[string]any{"x": json.Number("1")}}},
		"milliseconds":   {`{"ts":1634647357000,"msg":"m"}`, nodeos.LogEvent{Msg: "m", Time: at}},
		"an error":       {`{"ts":1634647357,"msg":"m","err":"broken"}`, nodeos.LogEvent{Msg: "m: broken", Time: at, Level: zapcore.WarnLevel}},
		"braces in text": {`a {b} c {d}`, nodeos.LogEvent{Msg: `a {b} c {d}`, Time: now}},
	} {
		if tc.want.Fields == nil {
			tc.want.Fields = map[string]any{}
		}
		got := Parse(tc.text, now)
		if !got.Time.Equal(tc.want.Time) {
			t.Errorf("%s: time is %s, want %s", name, got.Time, tc.want.Time)
		}
		got.Time = tc.want.Time
		if diff := cmp.Diff(&tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// sender adapts a function to a LogSender.
type sender func(ctx context.Context, e *nodeos.LogEvent) error

func (s sender) Send(ctx context.Context, e *nodeos.LogEvent) error { return s(ctx, e) }
func (s sender) Close(context.Context) error                        { return nil }

func TestLineIsResentUntilSuccessOrErrDontRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, 0)
		var mu sync.Mutex
		var got []string
		tries := 0
		m.SetSenders([]nodeos.LogSender{sender(func(_ context.Context, e *nodeos.LogEvent) error {
			mu.Lock()
			defer mu.Unlock()
			tries++
			switch {
			case e.Msg == "poison":
				return fmt.Errorf("bad: %w", nodeos.ErrDontRetry)
			case tries < 3:
				return errors.New("not now")
			}
			got = append(got, fmt.Sprint(e.Fields["lockstep-service"], ":", e.Msg))
			return nil
		})})
		write(t, m, "kubelet", "one\npoison\ntwo\n")
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff([]string{"kubelet:one", "kubelet:two"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestTwoWritersOfAServiceSendEachLineOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, 0)
		var mu sync.Mutex
		n := 0
		m.SetSenders([]nodeos.LogSender{sender(func(context.Context, *nodeos.LogEvent) error {
			mu.Lock()
			defer mu.Unlock()
			n++
			return nil
		})})
		write(t, m, "kubelet", "one\n")
		write(t, m, "kubelet", "two\n")
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if n != 2 {
			t.Errorf("two lines were sent %d times", n)
		}
	})
}

func TestSlowReceiverLosesTheOldestLinesAndReceivesTheirNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, 50)
		gate := make(chan struct{})
		var mu sync.Mutex
		var got []string
		m.SetSenders([]nodeos.LogSender{sender(func(_ context.Context, e *nodeos.LogEvent) error {
			<-gate
			mu.Lock()
			defer mu.Unlock()
			got = append(got, e.Msg)
			return nil
		})})
		write(t, m, "kubelet", "first\n")
		synctest.Wait()
		for i := range 100 {
			write(t, m, "kubelet", fmt.Sprintf("line %04d\n", i))
		}
		close(gate)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		want := []string{"first", "95 lines lost: the receiver is too slow", "line 0095", "line 0096", "line 0097", "line 0098", "line 0099"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestSetSendersReturnsThePreviousOnes(t *testing.T) {
	m := newManager(t, 0)
	a := sender(func(context.Context, *nodeos.LogEvent) error { return nil })
	if old := m.SetSenders([]nodeos.LogSender{a}); len(old) != 0 {
		t.Errorf("the first swap returned %d senders", len(old))
	}
	if old := m.SetSenders(nil); len(old) != 1 {
		t.Errorf("the second swap returned %d senders", len(old))
	}
}

func TestJSONLinesAreSentOverTCPAndUDP(t *testing.T) {
	event := &nodeos.LogEvent{Msg: "hello", Time: time.Unix(1, 0).UTC(), Level: zapcore.WarnLevel, Fields: map[string]any{"a": "b"}}
	want := map[string]any{"a": "b", "tag": "x", "msg": "hello", "lockstep-time": "1970-01-01T00:00:01Z", "lockstep-level": "warn"}
	for network, receive := range map[string]func(t *testing.T) (string, func() []byte){"tcp": receiveTCP, "udp": receiveUDP} {
		t.Run(network, func(t *testing.T) {
			address, next := receive(t)
			s, err := NewJSONLines(network+"://"+address, map[string]string{"tag": "x"})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(t.Context(), event); err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(next(), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func receiveTCP(t *testing.T) (string, func() []byte) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String(), func() []byte {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		data, err := bufio.NewReader(conn).ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
}

func receiveUDP(t *testing.T) (string, func() []byte) {
	t.Helper()
	c, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().String(), func() []byte {
		buf := make([]byte, 64<<10)
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		return buf[:n]
	}
}

func TestInvalidReceiversAreRejected(t *testing.T) {
	for _, endpoint := range []string{"", "http://host:1", "tcp://host", "tcp://user:secret@host:1"} {
		if _, err := NewJSONLines(endpoint, nil); err == nil {
			t.Errorf("%q was accepted", endpoint)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error contains the password: %v", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "text", `{"msg":"m"}`, `x {"ts":1e300,"err":null}`, "{}}", `{"level":3}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if e := Parse(s, time.Unix(0, 0)); e == nil || e.Fields == nil {
			t.Errorf("no event for %q", s)
		}
	})
}
