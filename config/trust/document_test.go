// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecodeReadsEveryField(t *testing.T) {
	k, s := ecdsaKey(t, "release-2026"), sshKey(t, "admin-1")
	d := source{
		version: 3, keys: []testKey{k, s},
		roles: `  root: {keys: [admin-1], threshold: 1}
  recovery: {keys: [admin-1], threshold: 1, delay: 24h}
  release: {keys: [release-2026], threshold: 1}
  git: {keys: [admin-1], threshold: 1}
`,
		rest: `rules:
- {match: {kind: ClusterRelease, name: "*"}, product: platform, images: ["registry.example.com/platform/**"], role: release}
sources: ["ssh://git@git.example.com/platform/"]
floors: {platform: 1.3.0}
markReset: {platform: 1.2.0}
revoked: {keys: [old], digests: ["sha256:` + strings.Repeat("0", 64) + `"]}
selfUpdate: [lockstep]
allowGitPayload: [site]
`,
	}.document(t)
	if d.Name != "root" || d.Version != 3 || d.Roles[RoleRecovery].Delay.Hours() != 24 || d.Floors["platform"] != "1.3.0" {
		t.Errorf("got %+v", d)
	}
	if got := d.RoleKeys(RoleGit); len(got) != 1 || got[0].SSH == "" || got[0].Fingerprint() != s.Fingerprint() || got[0].Algorithm() != "ed25519" {
		t.Errorf("git keys are %+v", got)
	}
	if !d.Governs("prod-1") || d.Governs("dev") {
		t.Error("clusters don't match")
	}
}

func TestDecodeRejects(t *testing.T) {
	a, b := ecdsaKey(t, "a"), edKey(t, "b")
	good := source{version: 1, keys: []testKey{a, b}, roles: "  root: {keys: [a], threshold: 1}\n  release: {keys: [a, b], threshold: 2}\n"}
	text := string(good.text())
	line := func(s string) int { return 1 + strings.Count(text[:strings.Index(text, s)], "\n") }
	for name, tc := range map[string]struct{ text, want string }{
		"nothing":                       {"", "empty"},
		"an unknown field":              {text + "extra: 1\n", "field extra not found"},
		"an unknown field in a role":    {strings.Replace(text, "threshold: 1", "threshold: 1, quorum: 2", 1), "field quorum not found"},
		"a repeated field":              {text + "version: 2\n", "already defined"},
		"a second document":             {text + "---\nname: x\n", "more than one"},
		"an anchor":                     {strings.Replace(text, "name: root", "name: &n root", 1), "anchors"},
		"a tag":                         {strings.Replace(text, "version: 1", "version: !!int 1", 1), "tag"},
		"no name":                       {strings.Replace(text, "name: root", "name: ''", 1), "line 1: name"},
		"version 0":                     {strings.Replace(text, "version: 1", "version: 0", 1), "line 2: version is 0"},
		"no expiry":                     {strings.Replace(text, "expires: 2027-11-29T00:00:00Z\n", "", 1), "expires is missing"},
		"no clusters":                   {strings.Replace(text, `clusters: ["prod-*"]`, "clusters: []", 1), "clusters is empty"},
		"an undefined key":              {strings.Replace(text, "keys: [a],", "keys: [c],", 1), fmt.Sprintf(`line %d: role root lists key "c"`, line("  root:"))},
		"a key twice in a role":         {strings.Replace(text, "[a, b]", "[a, a]", 1), "twice"},
		"a threshold that can't be met": {strings.Replace(text, "threshold: 2", "threshold: 3", 1), fmt.Sprintf("line %d: role release requires 3 signatures but has 2", line("  release:"))},
		"a threshold of 0":              {strings.Replace(text, "threshold: 1", "threshold: 0", 1), "requires 0 signatures"},
		"an unknown role":               {text + "  boss: {keys: [a], threshold: 1}\n", `role "boss" is unknown`},
		"a role without usable keys":    {text + "revoked: {keys: [a]}\n", "role release requires 2 signatures but has 1 usable"},
		"no root":                       {strings.Replace(text, "root:", "config:", 1), "role root is missing"},
		"a key of a wrong form":         {text + "  git: {keys: [a], threshold: 1}\n", "role git can't use pem key"},
		"one key under two names":       {strings.Replace(text, "keys:\n", "keys:\n"+testKey{name: "c", signer: a.signer}.yaml(), 1), "the same key"},
		"one name for two keys":         {strings.Replace(text, "name: b", "name: a", 1), `duplicate key "a"`},
		"no key material":               {strings.Replace(text, "keys:\n", "keys:\n- {name: z}\n", 1), "has 0 of pem, ssh and pgp"},
		"a private key":                 {strings.Replace(text, "PUBLIC KEY", "PRIVATE KEY", 2), "PUBLIC KEY"},
		"a rule for an unknown kind":    {text + "rules: [{match: {kind: Pod, name: x}, product: p, role: release}]\n", `kind "Pod"`},
		"a rule for an unknown role":    {text + "rules: [{match: {kind: NodeOS, name: x}, product: p, role: os}]\n", `role "os"`},
		"a rule of the root":            {text + "rules: [{match: {kind: NodeOS, name: x}, product: p, role: root}]\n", "signed by release or os"},
		"a rule without a name":         {text + "rules: [{match: {kind: NodeOS}, product: p, role: release}]\n", "pattern is empty"},
		"an invalid floor":              {text + "floors: {p: '1'}\n", "floors"},
		"an invalid digest":             {text + "revoked: {digests: [sha256:12]}\n", "64 lower-case"},
		"a source without a host":       {text + "sources: ['/srv/git']\n", "plain URL prefix"},
		"a delay of another role":       {strings.Replace(text, "threshold: 1}", "threshold: 1, delay: 1h}", 1), "only role recovery"},
		"a large document":              {text + "#" + strings.Repeat(" ", maxDocument), "at most"},
		"deep nesting":                  {"name: " + strings.Repeat("[", 20) + strings.Repeat("]", 20), "deeper"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %q", err, tc.want)
			}
		})
	}
	if _, err := Decode([]byte(text)); err != nil {
		t.Errorf("the unchanged document: %v", err)
	}
}

func TestOneKeyInTwoFormsIsOneKey(t *testing.T) {
	k := sshKey(t, "as-ssh")
	pem := testKey{name: "as-pem", signer: k.signer}
	_, err := Decode(source{version: 1, keys: []testKey{k, pem}, roles: "  root: {keys: [as-ssh, as-pem], threshold: 2}\n"}.text())
	if err == nil || !strings.Contains(err.Error(), "the same key") {
		t.Errorf("got %v", err)
	}
}

func TestGlob(t *testing.T) {
	for _, tc := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "platform", true},
		{"*", "a/b", false},
		{"**", "a/b", true},
		{"prod-*", "prod-1", true},
		{"prod-*", "preprod-1", false},
		{"r.example.com/p/**", "r.example.com/p/a/b", true},
		{"r.example.com/p/**", "r.example.com/pp/a", false},
		{"r.example.com/p/**", "r.example.com.evil.org/p/a", false},
		{"r.example.com/*/x", "r.example.com/a/x", true},
		{"r.example.com/*/x", "r.example.com/a/b/x", false},
		{"a.b", "axb", false},
		{"", "", true},
	} {
		if got := glob(tc.pattern, tc.s); got != tc.want {
			t.Errorf("glob(%q, %q) is %v", tc.pattern, tc.s, got)
		}
	}
}

func TestT2SourcesStayInsideTheListedPrefixes(t *testing.T) {
	d := &Document{Sources: []string{"ssh://git@git.example.com/platform/", "https://git.example.com/one"}}
	for url, want := range map[string]bool{
		"ssh://git@git.example.com/platform/fleet.git":      true,
		"ssh://other@GIT.example.com/platform/fleet.git":    true,
		"ssh://git@git.example.com/platform/../evil/x.git":  false,
		"ssh://git@git.example.com/platform/%2e%2e/evil":    false,
		"ssh://git@git.example.com/platformevil/x.git":      false,
		"ssh://git@git.example.com.evil.org/platform/x.git": false,
		"ssh://git.example.com@evil.org/platform/x.git":     false,
		"https://git.example.com/platform/fleet.git":        false,
		"https://git.example.com/one":                       true,
		"https://git.example.com/one/two":                   true,
		"https://git.example.com/oneself":                   false,
		"https://git.example.com/one?x=y":                   false,
		"git@git.example.com:platform/fleet.git":            false,
		"":                                                  false,
	} {
		if got := d.AllowsSource(url); got != want {
			t.Errorf("AllowsSource(%q) is %v", url, got)
		}
	}
}

func TestDigest(t *testing.T) {
	d := DigestOf([]byte("x"))
	got, err := ParseDigest(d.String())
	if err != nil || got != d || len(d.Bytes()) != 32 {
		t.Errorf("round trip: %v, %v", got, err)
	}
	for _, s := range []string{"", "sha256:", d.Hex(), strings.ToUpper(d.String()), "sha512:" + d.Hex(), d.String() + "0", d.String()[:70], "sha256:" + strings.Repeat("g", 64)} {
		if _, err := ParseDigest(s); err == nil {
			t.Errorf("ParseDigest accepted %q", s)
		}
	}
	if diff := cmp.Diff("sha256:2d711642b726…", d.Short()); diff != "" {
		t.Error(diff)
	}
}

func FuzzDecode(f *testing.F) {
	k := ecdsaKey(f, "a")
	f.Add(source{version: 1, keys: []testKey{k}, roles: "  root: {keys: [a], threshold: 1}\n"}.text())
	f.Add([]byte("name: root\nversion: 1\nkeys: [{name: a, ssh: x}]\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("{name: {name: [[[]]]}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Decode(b)
		if err != nil {
			return
		}
		if d.Digest() != DigestOf(b) || d.Version < 1 || d.threshold(RoleRoot) < 1 || len(d.RoleKeys(RoleRoot)) < d.threshold(RoleRoot) {
			t.Errorf("an invalid document was decoded: %q", b)
		}
	})
}
