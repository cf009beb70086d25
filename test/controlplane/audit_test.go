// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnAuditLineHasUserAndRequest(t *testing.T) {
	t.Parallel()
	const line = `{"stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/configmaps/b?dryRun=All&force=true","verb":"patch",` +
		`"user":{"username":"one"},"impersonatedUser":{"username":"two"},` +
		`"objectRef":{"resource":"configmaps","namespace":"a","name":"b","apiVersion":"v1"},"responseStatus":{"code":200}}`
	got, counts, err := parseAudit([]byte(line))
	if err != nil || !counts {
		t.Fatal(counts, err)
	}
	want := Audited{User: "one", As: "two", Verb: "patch", Resource: "configmaps", Namespace: "a", Name: "b", DryRun: true, Code: 200}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.Writes() {
		t.Error("a dry run writes nothing")
	}
	got.DryRun = false
	if !got.Writes() {
		t.Error("a patch writes")
	}
	for line, want := range map[string]bool{
		`{"stage":"ResponseStarted","verb":"watch","responseStatus":{"code":200}}`:  true,
		`{"stage":"ResponseComplete","verb":"watch","responseStatus":{"code":200}}`: false,
		`{"stage":"ResponseComplete","verb":"watch","responseStatus":{"code":403}}`: true,
		`{"stage":"ResponseStarted","verb":"get","responseStatus":{"code":200}}`:    false,
	} {
		if _, counts, err := parseAudit([]byte(line)); counts != want || err != nil {
			t.Errorf("%s counts: %t, want %t (%v)", line, counts, want, err)
		}
	}
}
