// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/sources"
)

// silent accepts connections and never responds.
func silent(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var held []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				for _, h := range held {
					_ = h.Close()
				}
				return
			}
			held = append(held, c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func TestAnUnresponsiveServerCostsAtMostTheTimeout(t *testing.T) {
	s, c := newServer(t), &clock{}
	addr := silent(t)
	cr := Credentials{Identity: s.keygen("id")}
	cr.KnownHosts = []byte("[127.0.0.1]:" + addr[strings.LastIndexByte(addr, ':')+1:] + " " + s.pub("id"))
	for _, url := range []string{"http://" + addr + "/x.git", "https://" + addr + "/x.git", "ssh://git@" + addr + "/x.git"} {
		began := realNow()
		src := s.source(url, c, func(cfg *Config) { cfg.Credentials, cfg.Timeout = creds(cr), 200*time.Millisecond })
		_, err := src.Fetch(t.Context(), sources.Request{})
		if reason(err) != ReasonFetchFailed {
			t.Errorf("%s: %v (%s), want FetchFailed", url, err, reason(err))
		}
		p := s.publisher(url, func(cfg *PublisherConfig) { cfg.Credentials, cfg.Timeout = creds(cr), 200*time.Millisecond })
		if _, err := p.Publish(t.Context(), status("x")); reason(err) != ReasonStatusPushFailed {
			t.Errorf("%s: push: %v (%s), want StatusPushFailed", url, err, reason(err))
		}
		if took := realNow().Sub(began); took > 10*time.Second {
			t.Errorf("%s took %s", url, took)
		}
	}
}
