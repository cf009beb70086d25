// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/lockstep-dev/lockstep/config/sanitize"
)

// digestPrefix names the only hash that Lockstep accepts for content.
const digestPrefix = "sha256:"

// shownHex is the number of hexadecimal digits in Digest.Short.
const shownHex = 12

// Digest identifies content by its SHA-256: "sha256:" and 64 lower-case
// hexadecimal digits. The zero value identifies nothing. ParseDigest and DigestOf
// return valid digests; a conversion from a string isn't checked.
type Digest string

// ParseDigest returns s as a Digest, or an error if s has another form.
func ParseDigest(s string) (Digest, error) {
	h, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(h) != sha256.Size*2 || strings.Trim(h, "0123456789abcdef") != "" {
		return "", fmt.Errorf("digest %q isn't sha256: followed by 64 lower-case hexadecimal digits", sanitize.Line(s))
	}
	return Digest(s), nil
}

// DigestOf returns the digest of b.
func DigestOf(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest(digestPrefix + hex.EncodeToString(sum[:]))
}

// DigestOfSum returns the digest of a computed SHA-256.
func DigestOfSum(sum [sha256.Size]byte) Digest {
	return Digest(digestPrefix + hex.EncodeToString(sum[:]))
}

// String returns the whole digest.
func (d Digest) String() string { return string(d) }

// Hex returns the hexadecimal digits without the name of the hash.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), digestPrefix) }

// Bytes returns the 32 bytes of the hash; nil for a zero or unchecked digest.
func (d Digest) Bytes() []byte {
	b, err := hex.DecodeString(d.Hex())
	if err != nil || len(b) != sha256.Size {
		return nil
	}
	return b
}

// Short returns the first twelve digits and an ellipsis, for messages.
func (d Digest) Short() string {
	if len(d.Hex()) <= shownHex {
		return string(d)
	}
	return digestPrefix + d.Hex()[:shownHex] + "…"
}
