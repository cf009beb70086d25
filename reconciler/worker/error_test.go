// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lockstep-dev/lockstep/payload"
)

// refusal carries a reason as the errors of other packages do.
type refusal struct{ retriable bool }

func (refusal) Error() string     { return "webhook refused" }
func (refusal) Reason() string    { return "WebhookFailed" }
func (r refusal) Retriable() bool { return r.retriable }

func TestAnErrorKeepsItsReasonAndGetsItsObject(t *testing.T) {
	id := object("a")
	for name, tc := range map[string]struct {
		err  error
		want UpdateError
	}{
		"plain":     {errors.New("x"), UpdateError{Code: ReasonFailed, Effect: EffectFail, Object: id, Retry: true}},
		"reasoned":  {fmt.Errorf("apply: %w", refusal{retriable: false}), UpdateError{Code: "WebhookFailed", Effect: EffectFail, Object: id}},
		"retriable": {refusal{retriable: true}, UpdateError{Code: "WebhookFailed", Effect: EffectFail, Object: id, Retry: true}},
		"ours":      {&UpdateError{Code: "X", Effect: EffectNone}, UpdateError{Code: "X", Effect: EffectNone, Object: id}},
		"about another": {
			fmt.Errorf("apply: %w", &UpdateError{Code: "X", Object: object("b")}), UpdateError{Code: "X", Effect: EffectFail, Object: object("b")},
		},
	} {
		got := asUpdateError(id, tc.err)
		if got.Code != tc.want.Code || got.Effect != tc.want.Effect || got.Object != tc.want.Object || got.Retry != tc.want.Retry {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func list(errs ...*UpdateError) errorList {
	var l errorList
	for _, e := range errs {
		l = l.add(e)
	}
	return l
}

func TestASummaryNamesTheRootCauseFirst(t *testing.T) {
	wait := &UpdateError{Code: "RolloutInProgress", Effect: EffectNone, Object: object("a"), Message: "waits", Retry: true}
	soft := &UpdateError{Code: "Degraded", Effect: EffectFailAfterInterval, Object: object("b"), Message: "degraded", Retry: true}
	hard := &UpdateError{Code: "Invalid", Effect: EffectFail, Object: object("c"), Message: "invalid"}
	later := &UpdateError{Code: "Invalid", Effect: EffectFail, Object: object("d"), Message: "invalid"}
	ended := &UpdateError{Code: ReasonFailed, Effect: EffectFail, Object: object("e"), Nested: context.Canceled}
	for name, tc := range map[string]struct {
		errs   errorList
		code   string
		object string
		text   string
	}{
		"one":                    {list(hard), "Invalid", "c", "ConfigMap c: invalid"},
		"waits beside a failure": {list(wait, hard), "Invalid", "c", "ConfigMap c: invalid"},
		"waits alone":            {list(wait), "RolloutInProgress", "a", "ConfigMap a: waits"},
		"the heaviest comes first": {
			list(soft, hard), ReasonMultiple, "c", "2 objects are not level: ConfigMap c: invalid; ConfigMap b: degraded",
		},
		"one reason stays one":     {list(hard, later), "Invalid", "c", "2 objects are not level: ConfigMap c: invalid (and 1 alike)"},
		"ended contexts are noise": {list(ended, hard), "Invalid", "c", "ConfigMap c: invalid"},
		"the same twice":           {list(hard, hard), "Invalid", "c", "ConfigMap c: invalid"},
	} {
		got := summarize(tc.errs)
		if got.Code != tc.code || got.Object.Name != tc.object || got.Error() != tc.text {
			t.Errorf("%s: %s %s %q", name, got.Code, got.Object, got.Error())
		}
	}
	if summarize(errorList{}) != nil {
		t.Error("no errors have a summary")
	}
}

func TestSummariesAreBounded(t *testing.T) {
	var l errorList
	for i := range 3 * maxErrors {
		l = l.add(&UpdateError{Code: "Invalid", Effect: EffectFail, Object: object(fmt.Sprintf("o%d", i)), Message: "invalid"})
	}
	got := summarize(l)
	if want := "300 objects are not level: ConfigMap o0: invalid (and 99 alike); and 200 more"; len(l.list) != maxErrors || got.Error() != want {
		t.Errorf("%d errors kept, the summary is %q, want %q", len(l.list), got.Error(), want)
	}
	var unlike errorList
	for i := range maxErrors {
		unlike = unlike.add(&UpdateError{Code: "Invalid", Effect: EffectFail, Object: object(fmt.Sprintf("o%d", i)), Message: fmt.Sprintf("invalid %d", i)})
	}
	if got := summarize(unlike).Error(); len(got) > 1024 || !strings.HasSuffix(got, "; and 90 more") {
		t.Errorf("the summary is %q", got)
	}
	if without := l.without(payload.ObjectID{Kind: "ConfigMap", Name: "o1"}); len(without.list) != maxErrors-1 || len(l.list) != maxErrors {
		t.Errorf("%d errors left of %d", len(without.list), len(l.list))
	}
}
