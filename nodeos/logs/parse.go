// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Parse parses a log line: a JSON object, text followed by a JSON object, or text.
// Time, level, message and error are taken from the usual keys of the object; the
// defaults are now and info.
func Parse(text string, now time.Time) *nodeos.LogEvent {
	e := &nodeos.LogEvent{Time: now, Level: zapcore.InfoLevel, Fields: map[string]any{}}
	text = strings.TrimSpace(text)
	e.Msg = text
	start := strings.IndexByte(text, '{')
	if start < 0 || !strings.HasSuffix(text, "}") {
		return e
	}
	fields := map[string]any{}
	dec := json.NewDecoder(strings.NewReader(text[start:]))
	dec.UseNumber()
	if dec.Decode(&fields) != nil || dec.InputOffset() != int64(len(text)-start) {
		return e
	}
	e.Msg, e.Fields = strings.TrimSpace(text[:start]), fields
	takeAll(e)
	return e
}

// takeAll moves the usual keys from the fields to the event.
func takeAll(e *nodeos.LogEvent) {
	for _, key := range []string{"time", "ts"} {
		if at, ok := parseTime(e.Fields[key]); ok {
			e.Time = at
			delete(e.Fields, key)
			break
		}
	}
	if s, ok := e.Fields["level"].(string); ok {
		if level, err := zapcore.ParseLevel(strings.Replace(strings.ToLower(s), "warning", "warn", 1)); err == nil {
			e.Level = level
			delete(e.Fields, "level")
		}
	}
	if msg, ok := e.Fields["msg"].(string); ok {
		e.Msg = strings.TrimSpace(e.Msg + " " + msg)
		delete(e.Fields, "msg")
	}
	if v, ok := e.Fields["err"]; ok && v != nil {
		e.Level = max(e.Level, zapcore.WarnLevel)
		e.Msg += fmt.Sprintf(": %v", v)
		delete(e.Fields, "err")
	}
}

// year3000 distinguishes seconds from milliseconds.
const year3000 = 32503680000

// parseTime parses RFC 3339, or seconds or milliseconds since 1970.
func parseTime(v any) (time.Time, bool) {
	switch v := v.(type) {
	case string:
		at, err := time.Parse(time.RFC3339Nano, v)
		return at, err == nil
	case json.Number:
		f, err := v.Float64()
		if err != nil || f < 0 || f > year3000*1000 {
			return time.Time{}, false
		}
		if f > year3000 {
			f /= 1000
		}
		whole, part := math.Modf(f)
		return time.Unix(int64(whole), int64(part*1e9)).UTC(), true
	default:
		return time.Time{}, false
	}
}
