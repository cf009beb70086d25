// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"math"
	"strconv"
	"strings"
)

// resolvePlain returns the value of a plain YAML scalar by the YAML 1.1 rules of
// sigs.k8s.io/yaml, kubectl and the cluster-version-operator: yes and on are
// booleans, 0777 is octal, dates are strings. ok is false for infinities and NaN,
// which JSON doesn't have.
func resolvePlain(s string) (value any, ok bool) {
	if s == "" {
		return nil, true
	}
	switch c := s[0]; {
	case c == '~' || strings.IndexByte("yYnNtTfFoO", c) >= 0:
		return resolveWord(s), true
	case c == '.' || c == '+' || c == '-' || (c >= '0' && c <= '9'):
		return resolveNumber(s)
	default:
		return s, true
	}
}

// resolveWord resolves the booleans and nulls of YAML 1.1.
func resolveWord(s string) any {
	switch s {
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		return true
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		return false
	case "~", "null", "Null", "NULL":
		return nil
	default:
		return s
	}
}

// resolveNumber returns an int64 or a float64, or the string if s isn't a number.
func resolveNumber(s string) (value any, ok bool) {
	switch s {
	case ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF":
		return nil, false
	}
	if s[0] == '.' {
		if f, err := strconv.ParseFloat(s, 64); err == nil {
			return number(f)
		}
		return s, true
	}
	plain := s
	if strings.IndexByte(s, '_') >= 0 {
		plain = strings.ReplaceAll(s, "_", "")
	}
	if i, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return i, true
	}
	if u, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return number(float64(u))
	}
	if isFloat(plain) {
		if f, err := strconv.ParseFloat(plain, 64); err == nil {
			return number(f)
		}
	}
	return s, true
}

// number returns f as an int64 if it is integral: JSON has one type of number, so
// 1.0 and 1 must have the same canonical form.
func number(f float64) (value any, ok bool) {
	switch {
	case math.IsInf(f, 0) || math.IsNaN(f):
		return nil, false
	case f == math.Trunc(f) && math.Abs(f) < 1<<63:
		return int64(f), true
	default:
		return f, true
	}
}

// isFloat matches [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?
func isFloat(s string) bool {
	s = skipSign(s)
	rest := skipDigits(s)
	whole := len(s) - len(rest)
	if strings.HasPrefix(rest, ".") {
		fraction := skipDigits(rest[1:])
		if whole == 0 && len(fraction) == len(rest)-1 {
			return false
		}
		rest = fraction
	} else if whole == 0 {
		return false
	}
	if rest == "" {
		return true
	}
	if rest[0] != 'e' && rest[0] != 'E' {
		return false
	}
	exponent := skipSign(rest[1:])
	return exponent != "" && skipDigits(exponent) == ""
}

func skipSign(s string) string {
	if s != "" && (s[0] == '+' || s[0] == '-') {
		return s[1:]
	}
	return s
}

func skipDigits(s string) string {
	for s != "" && s[0] >= '0' && s[0] <= '9' {
		s = s[1:]
	}
	return s
}
