// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// jsonDecoder builds values from tokens, in order to detect duplicate keys.
type jsonDecoder struct {
	*fileDecoder
	tokens *json.Decoder
	data   []byte
	// track remembers the lines of keys, which only duplicates need.
	track bool
}

// decodeJSON decodes the file as a stream of JSON objects. ok is false for other
// content, which may be YAML in flow style.
func (d *fileDecoder) decodeJSON(data []byte) (ok bool, err error) {
	if !json.Valid(firstJSON(data)) {
		return false, nil
	}
	j := &jsonDecoder{fileDecoder: d, data: data}
	ok, err = j.decodeAll()
	if ok && len(d.deviations) > 0 {
		// The lines of all keys are needed only to report the duplicate ones.
		d.docs, d.deviations, d.number = nil, nil, 0
		j.track = true
		return j.decodeAll()
	}
	return ok, err
}

// decodeAll decodes the stream.
func (j *jsonDecoder) decodeAll() (ok bool, err error) {
	d, data := j.fileDecoder, j.data
	j.tokens = json.NewDecoder(bytes.NewReader(data))
	j.tokens.UseNumber()
	for {
		token, err := j.tokens.Token()
		switch {
		case errors.Is(err, io.EOF):
			return true, nil
		case err != nil:
			return false, nil //nolint:nilerr // The YAML decoder reports the position of the error.
		}
		d.number++
		d.size = 0
		line := j.line()
		value, err := j.value(token, 0)
		if err != nil {
			if _, ours := errors.AsType[*LoadError](err); ours {
				return false, err
			}
			return false, nil
		}
		content, isMap := value.(map[string]any)
		if !isMap {
			return false, nil
		}
		if len(d.docs) >= d.limits.Manifests {
			return false, d.errorf(ReasonLimit, line, "more than %d documents", d.limits.Manifests)
		}
		d.docs = append(d.docs, document{content: content, number: d.number, line: line})
	}
}

// firstJSON returns data up to the end of its first JSON value.
func firstJSON(data []byte) []byte {
	var raw json.RawMessage
	if json.NewDecoder(bytes.NewReader(data)).Decode(&raw) != nil {
		return nil
	}
	return raw
}

// line returns the line of the last token.
func (j *jsonDecoder) line() int { return j.lineAt(j.tokens.InputOffset()) }

func (j *jsonDecoder) lineAt(offset int64) int {
	return 1 + bytes.Count(j.data[:offset], []byte{'\n'})
}

func (j *jsonDecoder) value(token json.Token, depth int) (any, error) {
	if depth > j.limits.Depth {
		return nil, j.errorf(ReasonLimit, j.line(), "nested deeper than %d", j.limits.Depth)
	}
	if j.size++; j.size > j.limits.Document {
		return nil, j.errorf(ReasonLimit, j.line(), "the document is larger than %d bytes", j.limits.Document)
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '{' {
			return j.object(depth)
		}
		return j.array(depth)
	case json.Number:
		return j.number64(token)
	case string:
		j.size += len(token)
		return token, nil
	default:
		return token, nil
	}
}

func (j *jsonDecoder) array(depth int) (any, error) {
	list := []any{}
	for j.tokens.More() {
		token, err := j.tokens.Token()
		if err != nil {
			return nil, err
		}
		value, err := j.value(token, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err := j.tokens.Token()
	return list, err
}

func (j *jsonDecoder) object(depth int) (any, error) {
	content := map[string]any{}
	var lines map[string]int
	if j.track {
		lines = map[string]int{}
	}
	for j.tokens.More() {
		token, err := j.tokens.Token()
		if err != nil {
			return nil, err
		}
		key, isString := token.(string)
		if !isString {
			return nil, errors.New("a key isn't a string")
		}
		offset := j.tokens.InputOffset()
		if token, err = j.tokens.Token(); err != nil {
			return nil, err
		}
		value, err := j.value(token, depth+1)
		if err != nil {
			return nil, err
		}
		before := len(content)
		if content[key] = value; len(content) == before {
			j.duplicate(key, j.lineAt(offset), lines[key])
		} else if lines != nil {
			lines[key] = j.lineAt(offset)
		}
		j.size += len(key) + 1
	}
	_, err := j.tokens.Token()
	return content, err
}

func (j *jsonDecoder) number64(n json.Number) (any, error) {
	if i, err := n.Int64(); err == nil {
		return i, nil
	}
	f, err := n.Float64()
	if err != nil {
		return nil, j.errorf(ReasonInvalid, j.line(), "number %s is out of range", n)
	}
	value, _ := number(f)
	return value, nil
}
