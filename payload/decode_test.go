// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestScalarsResolveAsInYAML11(t *testing.T) {
	for in, want := range map[string]any{
		"": nil, "~": nil, "null": nil, "NULL": nil, "nullx": "nullx",
		"yes": true, "y": true, "On": true, "True": true, "no": false, "n": false, "off": false, "yEs": "yEs",
		"0": int64(0), "-0": int64(0), "+7": int64(7), "0777": int64(511), "0o17": int64(15), "0x1F": int64(31), "0b11": int64(3),
		"08": int64(8), "1_000": int64(1000), "1.0": int64(1), "1e3": int64(1000), "1.5": 1.5, ".5": 0.5, "1.": int64(1), "-1.5e-3": -0.0015,
		"9223372036854775807": int64(9223372036854775807), "18446744073709551616": 18446744073709551616.0,
		"1e400": "1e400", "1.2.3": "1.2.3", "-": "-", ".": ".", "...": "...", "1e": "1e", "e1": "e1",
		"2001-01-01": "2001-01-01", "12:30": "12:30", "10.0.0.1": "10.0.0.1", "=": "=",
	} {
		got, ok := resolvePlain(in)
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
	for _, in := range []string{".inf", "-.Inf", ".nan"} {
		if _, ok := resolvePlain(in); ok {
			t.Errorf("%q was accepted", in)
		}
	}
}

func TestTagsAreAppliedOrRejected(t *testing.T) {
	docs, _, err := decodeFile("f", []byte("a: !!str 1\nb: !!int \"1\"\nc: !!float 2\nd: !!bool yes\ne: !!null ~\n"), DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"a": "1", "b": int64(1), "c": int64(2), "d": true, "e": nil}
	if diff := cmp.Diff(want, docs[0].content); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, in := range []string{"a: !!int x", "a: !!binary eA==", "a: !x y", "a: !!bool 1"} {
		if _, _, err := decodeFile("f", []byte(in), DefaultLimits()); err == nil {
			t.Errorf("%q was accepted", in)
		}
	}
}

func TestMergeKeysAddMissingKeys(t *testing.T) {
	docs, deviations, err := decodeFile("f", []byte("base: &b {v: 1, w: 2}\nuse: {<<: *b, v: 3}\nlist: {<<: [*b, {v: 4, z: 4}], w: 5}\n"), DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"base": map[string]any{"v": int64(1), "w": int64(2)},
		"use":  map[string]any{"v": int64(3), "w": int64(2)},
		"list": map[string]any{"v": int64(1), "w": int64(5), "z": int64(4)},
	}
	if diff := cmp.Diff(want, docs[0].content); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(deviations) != 2 {
		t.Errorf("%d deviations, want 2: %v", len(deviations), deviations)
	}
}

func TestJSONAndYAMLDecodeToTheSameObject(t *testing.T) {
	const inJSON = "{\n\t\"a\": 1.0, \"b\": \"\\ud83d\\ude00\\/\", \"c\": [true, null, 1e2, 1.5], \"d\": {}}"
	const inYAML = "a: 1\nb: \"\U0001F600/\"\nc: [true, null, 100, 1.5]\nd: {}\n"
	var got [2]map[string]any
	for i, in := range []string{inJSON, inYAML} {
		docs, deviations, err := decodeFile("f", []byte(in), DefaultLimits())
		if err != nil || len(deviations) > 0 || len(docs) != 1 {
			t.Fatalf("%q: %v, deviations %v", in, err, deviations)
		}
		got[i] = docs[0].content
	}
	if diff := cmp.Diff(got[1], got[0]); diff != "" {
		t.Errorf("(-YAML +JSON):\n%s", diff)
	}
}

func TestDuplicateKeysInJSONHaveTheirLine(t *testing.T) {
	_, deviations, err := decodeFile("f", []byte("{\n\"a\": 1,\n\"a\": 2}"), DefaultLimits())
	if err != nil || len(deviations) != 1 || deviations[0].line != 3 {
		t.Errorf("%v, %v", deviations, err)
	}
}

func TestCanonicalStringsAreValidJSON(t *testing.T) {
	for _, s := range []string{"", "plain", "a\"b\\c", "\n\t\r\b\f\x00\x1f", "<&>", "é\U0001F600", "bad\xff\xc3utf8", "\u2028"} {
		var back string
		if err := json.Unmarshal(appendString(nil, s), &back); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if want := string([]rune(s)); back != want {
			t.Errorf("%q decodes to %q", s, back)
		}
	}
}

// decodeSeeds are inputs of real payloads and of attackers.
var decodeSeeds = []string{
	"a: 1\n", "--- # c\na: b\n---\n", "\ufeffa: b", "%YAML 1.1\n---\na: |\n  ---\n", `{"a": [1, 2.5, "x"], "a": null}`,
	"a: &x [1]\nb: *x\n", "a: &x {b: *x}\n", "a: {<<: {b: c}}\n", "? [a]\n: b\n", "a: !!binary eA==", "1: 2\nyes: no\n", "a: 'x\n\n  y'\n",
	"{a: b, c}", "- a\n", "a: .inf", "\x00", "a:\tb\n", "a: 0777\nb: 1_0\nc: 1e3\n", "{\"a\":1}\n{\"b\":2}", "{\"a\":1}\n---\nb: 2\n",
}

// FuzzDecode checks that no input makes the decoder panic, and that accepted
// documents are equal after a round trip through their canonical form.
func FuzzDecode(f *testing.F) {
	for _, seed := range decodeSeeds {
		f.Add([]byte(seed))
	}
	limits := Limits{Bytes: 1 << 16, Manifests: 16, Document: 1 << 14, Depth: 16, Aliases: 16}
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, _, err := decodeFile("f", data, limits)
		if err != nil {
			return
		}
		for _, doc := range docs {
			canonical, err := appendCanonical(nil, doc.content)
			if err != nil {
				t.Fatalf("no canonical form: %v", err)
			}
			again, _, err := decodeFile("f", canonical, DefaultLimits())
			if err != nil || len(again) != 1 {
				t.Fatalf("%s doesn't decode: %v", canonical, err)
			}
			second, err := appendCanonical(nil, again[0].content)
			if err != nil || !bytes.Equal(canonical, second) {
				t.Fatalf("%s became %s: %v", canonical, second, err)
			}
		}
	})
}

// FuzzScalar compares plain scalars with sigs.k8s.io/yaml.
func FuzzScalar(f *testing.F) {
	for _, seed := range []string{"yes", "0777", "1_0", "0x_1", "-0b1", "1e3", ".5", "+.5", "2001-01-01", "08", "1e400", "1.e1", "-.e1", "0o7", "~", "9223372036854775808"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.TrimLeft(s, "+-._0123456789abcdefonxyNYETRSUL~") != "" {
			return // Only numbers and words of YAML 1.1.
		}
		data := []byte("k: " + s + "\n")
		want, err := yaml.YAMLToJSON(data)
		if err != nil {
			return
		}
		docs, _, err := decodeFile("f", data, DefaultLimits())
		if err != nil || len(docs) != 1 {
			t.Fatalf("%q: %v", s, err)
		}
		got, err := appendCanonical(nil, docs[0].content)
		if err != nil {
			t.Fatal(err)
		}
		var wantValue, gotValue any
		if json.Unmarshal(want, &wantValue) != nil || json.Unmarshal(got, &gotValue) != nil {
			t.Fatalf("%s and %s aren't both JSON", want, got)
		}
		if diff := cmp.Diff(wantValue, gotValue); diff != "" {
			t.Errorf("%q (-peer +ours):\n%s", s, diff)
		}
	})
}
