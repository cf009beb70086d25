// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnAuditLineSaysWhoDidWhat(t *testing.T) {
	t.Parallel()
	const line = `{"stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/configmaps/b?dryRun=All&force=true","verb":"patch",` +
		`"user":{"username":"one"},"impersonatedUser":{"username":"two"},` +
		`"objectRef":{"resource":"configmaps","namespace":"a","name":"b","apiVersion":"v1"},"responseStatus":{"code":200}}`
	got, ended, err := parseAudit([]byte(line))
	if err != nil || !ended {
		t.Fatal(ended, err)
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
	if _, ended, err := parseAudit([]byte(`{"stage":"ResponseStarted","verb":"watch"}`)); ended || err != nil {
		t.Errorf("the start of a watch counts as a request (%v)", err)
	}
}
