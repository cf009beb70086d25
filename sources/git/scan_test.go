// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"testing"
)

// pack returns a pack of one object with the given type, declared size, extra
// header bytes and content.
func pack(t *testing.T, kind byte, size int, extra, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("PACK")
	for _, n := range []uint32{2, 1} {
		if err := binary.Write(&b, binary.BigEndian, n); err != nil {
			t.Fatal(err)
		}
	}
	first := kind<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		b.WriteByte(first | 0x80)
		first = byte(size & 0x7f)
	}
	b.WriteByte(first)
	b.Write(extra)
	z := zlib.NewWriter(&b)
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha1.Sum(b.Bytes())
	b.Write(sum[:])
	return b.Bytes()
}

func TestPacksThatInflateBeyondTheLimitAreRejected(t *testing.T) {
	big := make([]byte, maxObject+1)
	bomb := pack(t, 3, len(big), nil, big)
	if len(bomb) > 100_000 {
		t.Fatalf("the bomb has %d bytes", len(bomb))
	}
	var delta []byte
	delta = binary.AppendUvarint(delta, 10)
	delta = binary.AppendUvarint(delta, 1<<40)
	delta = append(delta, 1, 'x')
	for name, tc := range map[string]struct {
		pack []byte
		want string
	}{
		"a small blob":                    {pack(t, 3, 2, nil, []byte("hi")), ""},
		"a blob beyond the limit":         {bomb, ReasonLimitExceeded},
		"a delta with a result beyond it": {pack(t, 7, len(delta), bytes.Repeat([]byte{1}, 20), delta), ReasonLimitExceeded},
		"a blob larger than its header":   {pack(t, 3, 1, nil, []byte("hi")), "error"},
		"a pack with missing objects":     {append([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x05"), make([]byte, 20)...), "error"},
	} {
		err := scanPack(bytes.NewReader(tc.pack))
		got := reason(err)
		if err != nil && got == "" {
			got = "error"
		}
		if got != tc.want {
			t.Errorf("%s: %v (%s), want %q", name, err, got, tc.want)
		}
	}
}

func FuzzScanPack(f *testing.F) {
	f.Add([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00"))
	f.Fuzz(func(_ *testing.T, data []byte) { _ = scanPack(bytes.NewReader(data)) })
}
