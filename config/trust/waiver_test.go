// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"testing"
	"time"
)

func FuzzOpenWaiver(f *testing.F) {
	w := Waiver{
		Cluster: "prod", Product: "platform", Version: "1.6.0", Digest: DigestOf([]byte("it")),
		Checks: []string{"GiantHop"}, Reason: "tested", Issued: now, Expires: now.Add(time.Hour),
	}
	raw, err := SealWaiver(w, w.Checks, ecdsaKey(f, "a"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"payloadType":"application/vnd.lockstep.waiver.v1+json","payload":"e30=","signatures":[]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		w, payload, err := OpenWaiver(raw)
		if err != nil {
			return
		}
		again, err := DecodeWaiver(payload)
		if err != nil || again.Cluster != w.Cluster || len(again.Checks) != len(w.Checks) {
			t.Fatalf("decoded %+v, then %+v: %v", w, again, err)
		}
		if _, err := EvaluateWaiver(&Document{}, WaiverTarget{}, w, w.Checks, nil, now); err == nil {
			t.Fatal("a waiver counts without a policy")
		}
	})
}
