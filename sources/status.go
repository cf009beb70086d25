// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package sources

// StatusCommit is what to publish on a status branch. Whoever publishes it
// cleans subject and trailers once more: neither can hold a line break.
type StatusCommit struct {
	// Subject is the first line of the message.
	Subject string
	// Trailers end the message; their keys start with "Lockstep-".
	Trailers []Trailer
	// Files are the whole content of the branch, by plain name.
	Files map[string][]byte
}

// Trailer is one line "Key: Value" at the end of a message.
type Trailer struct{ Key, Value string }

// Pushed says what was published.
type Pushed struct {
	// Revision as lockstep-status/<cluster>@sha1:<hex>.
	Revision Revision
	// Rewritten is the tip that was found where our own last commit was
	// expected, "none" if the branch was gone, or "" if all was as we left
	// it. The new commit then names ours in the trailer Lockstep-Previous.
	Rewritten string
	// Attempts that it took.
	Attempts int
}
