// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"reflect"
	"testing"
	"time"

	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/precondition"
	"github.com/lockstep-dev/lockstep/payload/verify"
)

func TestOnlyASignedReleaseIsVerified(t *testing.T) {
	for name, info := range map[string]PayloadInfo{
		"nothing": {}, "a payload without a signature": {Payload: testPayload(t, "1.0.0", "a")},
		"the zero Signed": Retrieved(verify.Signed{}, testPayload(t, "1.0.0", "a")),
	} {
		if info.Verified() || info.Evidence() != nil {
			t.Errorf("%s is verified by %v", name, info.Evidence())
		}
	}
}

// Lists are found by reflection, so that a new field isn't forgotten.
func TestACopyOfAStatusSharesNoMutableData(t *testing.T) {
	original := SyncWorkerStatus{
		Blocking: []Blocking{{Reason: "a"}}, History: []HistoryFact{{Release: Release{Evidence: []string{"a"}}}},
		Waits: map[payload.ObjectID]WaitClock{object("a"): {Spent: time.Second}},
	}
	fill(reflect.ValueOf(&original).Elem())
	original.Load.Violations, original.Restore.Violations = []precondition.Violation{{Name: "a"}}, []precondition.Violation{{Name: "a"}}
	c := original.DeepCopy()
	if !reflect.DeepEqual(original, *c) { //nolint:govet // a copy has the same errors
		t.Fatalf("the copy differs: %+v", c)
	}
	var shared []string
	compare("", reflect.ValueOf(original), reflect.ValueOf(*c), &shared)
	if len(shared) > 0 {
		t.Errorf("shared with the original: %v", shared)
	}
}

// fill sets each list of strings below v.
func fill(v reflect.Value) {
	for _, f := range v.Fields() {
		switch {
		case !f.CanSet():
		case f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[time.Time]():
			fill(f)
		case f.Type() == reflect.TypeFor[[]string]():
			f.Set(reflect.ValueOf([]string{"a"}))
		}
	}
}

// compare collects the slices and maps that a and b share.
func compare(at string, a, b reflect.Value, shared *[]string) {
	kind := a.Kind()
	switch {
	case a.Type() == reflect.TypeFor[time.Time]():
	case kind == reflect.Struct:
		for i := range a.NumField() {
			compare(at+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i), shared)
		}
	case kind == reflect.Slice, kind == reflect.Map:
		if a.Len() > 0 && a.Pointer() == b.Pointer() {
			*shared = append(*shared, at)
		}
		if kind == reflect.Slice {
			for i := range a.Len() {
				compare(at+"[]", a.Index(i), b.Index(i), shared)
			}
		}
	}
}
