// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// appendCanonical appends the canonical JSON of v: keys sorted by their bytes,
// no whitespace, no HTML escapes, numbers in their shortest form. v consists of
// map[string]any, []any, string, bool, int64, float64 and nil.
func appendCanonical(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case string:
		return appendString(dst, v), nil
	case []any:
		return appendList(dst, v)
	case map[string]any:
		return appendMap(dst, v)
	case float64:
		text, err := json.Marshal(v)
		if err != nil {
			return nil, &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("number %v can't be represented in JSON", v)}
		}
		return append(dst, text...), nil
	default:
		return nil, &LoadError{Kind: ReasonInvalid, Message: fmt.Sprintf("type %T can't be represented in JSON", v)}
	}
}

func appendList(dst []byte, list []any) ([]byte, error) {
	dst = append(dst, '[')
	var err error
	for i, item := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendCanonical(dst, item); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

func appendMap(dst []byte, content map[string]any) ([]byte, error) {
	dst = append(dst, '{')
	var err error
	// Keys of small mappings are sorted without an allocation.
	var room [16]string
	keys := slices.AppendSeq(room[:0], maps.Keys(content))
	slices.Sort(keys)
	for i, key := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, key), ':')
		if dst, err = appendCanonical(dst, content[key]); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Invalid UTF-8 becomes the replacement
// character, as in encoding/json.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, s[start:i]...), "\ufffd"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}
