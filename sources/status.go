// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sources

// StatusCommit is a commit to publish on a status branch. The publisher sanitizes
// subject and trailers.
type StatusCommit struct {
	// Subject is the first line of the message.
	Subject string
	// Trailers end the message; their keys start with "Lockstep-".
	Trailers []Trailer
	// Files are the complete content of the branch, by plain name.
	Files map[string][]byte
}

// Trailer is one line "Key: Value" at the end of a message.
type Trailer struct{ Key, Value string }

// Pushed is the result of a publication.
type Pushed struct {
	// Revision as lockstep-status/<cluster>@sha1:<hex>.
	Revision Revision
	// Rewritten is the tip that was found instead of the last pushed commit,
	// "none" if the branch was deleted, or "" if the branch was unchanged. The
	// new commit names the last pushed one in the trailer Lockstep-Previous.
	Rewritten string
	// Attempts is the number of pushes, lost races included.
	Attempts int
}
