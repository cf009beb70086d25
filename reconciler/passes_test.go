// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/worker"
)

func TestEachPassThatEndsIsCountedOnce(t *testing.T) {
	var got []string
	p := passes{ended: func(result string) { got = append(got, result) }}
	for _, s := range []worker.SyncWorkerStatus{
		{},             // nothing yet
		{Attempt: 1},   // a pass failed
		{Attempt: 1},   // something else changed
		{Attempt: 2},   // the next one failed too
		{Completed: 1}, // then it was level
		{Completed: 2}, // and stayed so
		{},             // another release
		{Completed: 1}, // is level at once
		{Attempt: 1},   // and broken later
		{Completed: 1}, // and repaired
	} {
		p.see(&s)
	}
	want := []string{passIncomplete, passIncomplete, passLevel, passLevel, passLevel, passIncomplete, passLevel}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("passes (-want +got):\n%s", diff)
	}
}

func TestWhatKeepsAnObjectFromBeingLevelIsLoggedOnceAChange(t *testing.T) {
	var lines []string
	tell := tellEnds(funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	missing := &worker.UpdateError{Code: "NamespaceMissing", Message: "no namespace web"}
	invalid := &worker.UpdateError{Code: "ResourceInvalid", Message: "spec is required"}
	canceled := &worker.UpdateError{Code: worker.ReasonFailed, Nested: context.Canceled}
	m := &payload.Manifest{ID: payload.ObjectID{Kind: "ConfigMap", Namespace: "web", Name: "a"}, File: "0000_10_web_00.yaml", Line: 7}
	for _, err := range []*worker.UpdateError{nil, missing, missing, canceled, invalid, nil, nil, invalid} {
		tell(m, err)
	}
	wants := []string{"NamespaceMissing", "ResourceInvalid", "level after all", "ResourceInvalid"}
	if len(lines) != len(wants) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(wants), strings.Join(lines, "\n"))
	}
	for i, want := range wants {
		if !strings.Contains(lines[i], want) || !strings.Contains(lines[i], "ConfigMap web/a") {
			t.Errorf("line %d is %s, want it to name the object and %s", i, lines[i], want)
		}
	}
	if !strings.Contains(lines[0], "0000_10_web_00.yaml") || !strings.Contains(lines[0], "no namespace web") {
		t.Errorf("%s names neither the file nor the cause", lines[0])
	}
}
