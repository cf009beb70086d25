// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

// Audited is one request in the audit log.
type Audited struct {
	// User sent the request; As is the user that it impersonated, or "".
	User, As string
	// Verb is Kubernetes' own: get, list, watch, create, update, patch, delete,
	// deletecollection.
	Verb string
	// Group, Resource, Subresource, Namespace and Name identify the target.
	Group, Resource, Subresource, Namespace, Name string
	// DryRun is true if nothing may have changed.
	DryRun bool
	// Code is the HTTP status.
	Code int
	// At is when the server received it, Ended when it answered.
	At, Ended time.Time
}

// Writes reports whether the request may have changed something.
func (a Audited) Writes() bool {
	return !a.DryRun && !slices.Contains([]string{"get", "list", "watch"}, a.Verb)
}

// String returns the request in one line.
func (a Audited) String() string {
	who := a.User
	if a.As != "" {
		who += " as " + a.As
	}
	return fmt.Sprintf("%s: %s %s %s/%s %s/%s: %d", who, a.Verb, a.Group, a.Resource, a.Subresource, a.Namespace, a.Name, a.Code)
}

// AuditMark is a place in an audit log.
type AuditMark struct {
	path   string
	offset int64
}

// MarkAudit returns the end of the audit log in Options.AuditLog.
func (c *Cluster) MarkAudit() (AuditMark, error) {
	if c.opts.AuditLog == "" {
		return AuditMark{}, errors.New("read the audit log: this control plane has none")
	}
	info, err := os.Stat(c.opts.AuditLog)
	if err != nil {
		return AuditMark{}, fmt.Errorf("read the audit log: %w", err)
	}
	return AuditMark{c.opts.AuditLog, info.Size()}, nil
}

// Since returns the requests that ended after the mark, in the log's order; a
// watch counts when it starts.
func (m AuditMark) Since() ([]Audited, error) {
	file, err := os.Open(m.path)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(m.offset, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var out []Audited
	for r := bufio.NewReader(file); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return out, nil // an incomplete line is being written
		}
		if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		one, counts, err := parseAudit(line)
		if err != nil {
			return nil, err
		}
		if counts {
			out = append(out, one)
		}
	}
}

// parseAudit reads a line; counts is false for the end of a watch, which
// counted when it started, and for the start of other requests.
func parseAudit(line []byte) (a Audited, counts bool, err error) {
	type user struct {
		Username string `json:"username"`
	}
	var e struct {
		Stage            string `json:"stage"`
		Verb             string `json:"verb"`
		RequestURI       string `json:"requestURI"`
		User             user   `json:"user"`
		ImpersonatedUser user   `json:"impersonatedUser"`
		ObjectRef        struct {
			APIGroup    string `json:"apiGroup"`
			Resource    string `json:"resource"`
			Subresource string `json:"subresource"`
			Namespace   string `json:"namespace"`
			Name        string `json:"name"`
		} `json:"objectRef"`
		ResponseStatus struct {
			Code int `json:"code"`
		} `json:"responseStatus"`
		RequestReceived time.Time `json:"requestReceivedTimestamp"`
		Reached         time.Time `json:"stageTimestamp"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return a, false, fmt.Errorf("read the audit log: %w", err)
	}
	a = Audited{
		User: e.User.Username, As: e.ImpersonatedUser.Username, Verb: e.Verb,
		Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
		Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
		DryRun: strings.Contains(e.RequestURI, "dryRun=All"), Code: e.ResponseStatus.Code,
		At: e.RequestReceived, Ended: e.Reached,
	}
	switch {
	case e.Stage == "ResponseStarted":
		return a, a.Verb == "watch", nil
	case a.Verb == "watch":
		return a, a.Code >= http.StatusBadRequest, nil // It never started.
	default:
		return a, true, nil
	}
}
