// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package git

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/transport"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/sources"
)

// The condition reasons of an Error.
const (
	ReasonInvalid           = "InvalidSpec"             // the spec is invalid
	ReasonFetchFailed       = "FetchFailed"             // network, server or disk; retried
	ReasonAuthFailed        = "AuthenticationFailed"    // the server rejected the credentials; retried
	ReasonHostKey           = "HostKeyMismatch"         // the host key isn't in known_hosts
	ReasonRefNotFound       = "RefNotFound"             // the reference doesn't exist
	ReasonRewound           = "Rewound"                 // the reference no longer contains the accepted commit
	ReasonTagMoved          = "TagMoved"                // the accepted tag points to another commit
	ReasonObjectFormat      = "UnsupportedObjectFormat" // a SHA-256 repository
	ReasonUnsigned          = "Unsigned"                // no signature
	ReasonWrongAuthority    = "WrongAuthority"          // signed, but by no authority
	ReasonInvalidSignature  = "InvalidSignature"        // malformed, or not over this commit
	ReasonInvalidTree       = "InvalidTree"             // a tree or commit that strict fsck rejects
	ReasonLimitExceeded     = "LimitExceeded"           // more bytes, files or objects than allowed
	ReasonLFSPointer        = "LFSPointer"              // content is stored in Git LFS
	ReasonEquivocation      = "Equivocation"            // two contents for one commit
	ReasonStatusPushDenied  = "StatusPushDenied"        // the server rejects the push
	ReasonStatusPushFailed  = "StatusPushFailed"        // network, server or lost races; retried
	ReasonStatusRefNotOurs  = "StatusRefInvalid"        // the cluster name is invalid for a branch
	ReasonNotFound          = "RevisionNotFound"        // neither in the mirror nor on the server
	ReasonInsecureTransport = "InsecureTransport"       // http or file without the insecure option
)

// Error is the error type of this package, with a condition reason. Its text
// contains no secrets, and messages of servers are sanitized.
type Error struct {
	reason    string
	message   string
	attempted sources.Revision
	err       error
}

// Error implements error.
func (e *Error) Error() string {
	if e.err == nil {
		return e.message
	}
	return e.message + ": " + sanitize.Line(e.err.Error())
}

// Unwrap returns the cause, if any.
func (e *Error) Unwrap() error { return e.err }

// Reason returns the condition reason.
func (e *Error) Reason() string { return e.reason }

// Attempted returns the rejected revision; zero if none was resolved.
func (e *Error) Attempted() sources.Revision { return e.attempted }

// Retriable reports whether the same call may succeed later without a change of
// the spec or the repository.
func (e *Error) Retriable() bool {
	return e.reason == ReasonFetchFailed || e.reason == ReasonAuthFailed || e.reason == ReasonStatusPushFailed
}

func refuse(reason, message string) *Error { return &Error{reason: reason, message: message} }

func wrap(reason, message string, err error) *Error {
	return &Error{reason: reason, message: message, err: err}
}

// reasoned is an error with a condition reason.
type reasoned interface {
	error
	Reason() string
}

// classify converts an error of a transport or a store into an Error.
func classify(what string, err error) *Error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	if r, ok := errors.AsType[reasoned](err); ok {
		return wrap(r.Reason(), what, err)
	}
	text := err.Error()
	switch {
	case errors.Is(err, transport.ErrAuthenticationRequired), errors.Is(err, transport.ErrAuthorizationFailed),
		strings.Contains(text, "unable to authenticate"):
		return wrap(ReasonAuthFailed, what+": the server rejected the credentials; check the Secret in secretRef", err)
	case strings.Contains(text, "no common algorithm for host key"):
		return wrap(ReasonHostKey, what+": the server has no host key of a type in known_hosts; if its key was changed, update known_hosts", err)
	case errors.Is(err, transport.ErrRepositoryNotFound):
		return wrap(ReasonFetchFailed, what+": repository not found or access denied; check url and credentials", err)
	case errors.Is(err, context.DeadlineExceeded):
		return wrap(ReasonFetchFailed, what+": timed out; retried automatically", err)
	case isNetwork(err):
		return wrap(ReasonFetchFailed, what+": the server is unreachable; retried automatically", err)
	}
	return wrap(ReasonFetchFailed, what, err)
}

func isNetwork(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, io.ErrUnexpectedEOF)
}
