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

// Reasons that an Error carries into a condition.
const (
	ReasonInvalid           = "InvalidSpec"             // the declaration can't work as written
	ReasonFetchFailed       = "FetchFailed"             // network, server or disk; retried
	ReasonAuthFailed        = "AuthenticationFailed"    // the credentials were refused; retried
	ReasonHostKey           = "HostKeyMismatch"         // the SSH server isn't one of known_hosts
	ReasonRefNotFound       = "RefNotFound"             // the reference isn't there (any more); the accepted revision stays
	ReasonRewound           = "Rewound"                 // the reference no longer contains the accepted commit
	ReasonTagMoved          = "TagMoved"                // the accepted tag names another commit
	ReasonObjectFormat      = "UnsupportedObjectFormat" // a SHA-256 repository
	ReasonUnsigned          = "Unsigned"                // no signature
	ReasonWrongAuthority    = "WrongAuthority"          // signed, but by none of the authorities
	ReasonInvalidSignature  = "InvalidSignature"        // signed by nobody's key over these bytes, or malformed
	ReasonInvalidTree       = "InvalidTree"             // a tree or commit that strict fsck refuses
	ReasonLimitExceeded     = "LimitExceeded"           // more bytes, files or objects than allowed
	ReasonLFSPointer        = "LFSPointer"              // content lives in Git LFS
	ReasonEquivocation      = "Equivocation"            // one commit name, two contents
	ReasonStatusPushDenied  = "StatusPushDenied"        // policy refuses the push
	ReasonStatusPushFailed  = "StatusPushFailed"        // network, server or lost races; retried
	ReasonStatusRefNotOurs  = "StatusRefInvalid"        // the status branch would be somebody else's
	ReasonNotFound          = "RevisionNotFound"        // a revision that isn't in the mirror nor on the server
	ReasonInsecureTransport = "InsecureTransport"       // http or file without the process flag
)

// Error is what this package returns: what failed, and the reason for a
// condition. Its text holds no secrets; what servers said is cleaned.
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

// Reason returns the reason for a condition.
func (e *Error) Reason() string { return e.reason }

// Attempted returns the revision that was refused; zero if none was reached.
func (e *Error) Attempted() sources.Revision { return e.attempted }

// Retriable reports whether the same call may succeed later without anybody
// changing the declaration or the repository.
func (e *Error) Retriable() bool {
	return e.reason == ReasonFetchFailed || e.reason == ReasonAuthFailed || e.reason == ReasonStatusPushFailed
}

func refuse(reason, message string) *Error { return &Error{reason: reason, message: message} }

func wrap(reason, message string, err error) *Error {
	return &Error{reason: reason, message: message, err: err}
}

// reasoned is any error of ours that knows its reason.
type reasoned interface {
	error
	Reason() string
}

// classify turns what a transport or a store said into an Error.
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
		return wrap(ReasonAuthFailed, what+": the server refused the credentials; check the Secret that secretRef names", err)
	case strings.Contains(text, "no common algorithm for host key"):
		return wrap(ReasonHostKey, what+": the server offers no key of the kind that known_hosts holds for it; if the forge really changed it, update known_hosts", err)
	case errors.Is(err, transport.ErrRepositoryNotFound):
		return wrap(ReasonFetchFailed, what+": no such repository, or no right to see it; check url and credentials", err)
	case errors.Is(err, context.DeadlineExceeded):
		return wrap(ReasonFetchFailed, what+": not done within the timeout; it's tried again", err)
	case isNetwork(err):
		return wrap(ReasonFetchFailed, what+": the server can't be reached; it's tried again", err)
	}
	return wrap(ReasonFetchFailed, what, err)
}

func isNetwork(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, io.ErrUnexpectedEOF)
}
