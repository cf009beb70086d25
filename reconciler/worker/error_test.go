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

// reasonedError has a reason, like the errors of other packages.
type reasonedError struct{ retriable bool }

func (reasonedError) Error() string     { return "webhook failed" }
func (reasonedError) Reason() string    { return "WebhookFailed" }
func (r reasonedError) Retriable() bool { return r.retriable }

func TestAnErrorKeepsItsReasonAndHasItsObject(t *testing.T) {
	id := object("a")
	for name, tc := range map[string]struct {
		err  error
		want UpdateError
	}{
		"plain":     {errors.New("x"), UpdateError{Code: ReasonFailed, Effect: EffectFail, Object: id, Retry: true}},
		"reasoned":  {fmt.Errorf("apply: %w", reasonedError{retriable: false}), UpdateError{Code: "WebhookFailed", Effect: EffectFail, Object: id}},
		"retriable": {reasonedError{retriable: true}, UpdateError{Code: "WebhookFailed", Effect: EffectFail, Object: id, Retry: true}},
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
		"one":                 {list(hard), "Invalid", "c", "ConfigMap c: invalid"},
		"waits and a failure": {list(wait, hard), "Invalid", "c", "ConfigMap c: invalid"},
		"only waits":          {list(wait), "RolloutInProgress", "a", "ConfigMap a: waits"},
		"the most severe error first": {
			list(soft, hard), ReasonMultiple, "c", "2 objects are not ready: ConfigMap c: invalid; ConfigMap b: degraded",
		},
		"equal reasons":                 {list(hard, later), "Invalid", "c", "2 objects are not ready: ConfigMap c: invalid (and 1 similar)"},
		"canceled contexts are dropped": {list(ended, hard), "Invalid", "c", "ConfigMap c: invalid"},
		"repeated errors are dropped":   {list(hard, hard), "Invalid", "c", "ConfigMap c: invalid"},
	} {
		got := summarize(tc.errs)
		if got.Code != tc.code || got.Object.Name != tc.object || got.Error() != tc.text {
			t.Errorf("%s: %s %s %q", name, got.Code, got.Object, got.Error())
		}
	}
	if summarize(errorList{}) != nil {
		t.Error("summary of no errors")
	}
}

func TestSummariesAreBounded(t *testing.T) {
	var l errorList
	for i := range 3 * maxErrors {
		l = l.add(&UpdateError{Code: "Invalid", Effect: EffectFail, Object: object(fmt.Sprintf("o%d", i)), Message: "invalid"})
	}
	got := summarize(l)
	if want := "300 objects are not ready: ConfigMap o0: invalid (and 99 similar); and 200 more"; len(l.list) != maxErrors || got.Error() != want {
		t.Errorf("%d errors kept, the summary is %q, want %q", len(l.list), got.Error(), want)
	}
	var distinct errorList
	for i := range maxErrors {
		distinct = distinct.add(&UpdateError{Code: "Invalid", Effect: EffectFail, Object: object(fmt.Sprintf("o%d", i)), Message: fmt.Sprintf("invalid %d", i)})
	}
	if got := summarize(distinct).Error(); len(got) > 1024 || !strings.HasSuffix(got, "; and 90 more") {
		t.Errorf("the summary is %q", got)
	}
	if without := l.without(payload.ObjectID{Kind: "ConfigMap", Name: "o1"}); len(without.list) != maxErrors-1 || len(l.list) != maxErrors {
		t.Errorf("%d errors left of %d", len(without.list), len(l.list))
	}
}
