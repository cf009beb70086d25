// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reasons

func trust() Group {
	return Group{
		"Signatures and policy",
		"Conditions `ReleaseAccepted`, `ReleaseVerified`, `OSVerified`, `SourceVerified` and those of the TrustPolicy; errors of `lockstep release verify` and `lockstep trust check`. The words are those of [trust](../trust.md).",
		[]Reason{
			{"Verified", Fine, "the signatures satisfy every rule that matches", ""},
			{"Unsigned", Itself, "there is no signature yet", "sign it: `lockstep release sign` or `lockstep os sign`; a commit: `git commit -S`"},
			{"ThresholdNotMet", Itself, "some of the signatures that the role needs are there", "the holders that the message names sign too"},
			{"WrongAuthority", Person, "there are signatures, and none by a key of the role", "sign with a key of the role, or give the key the role in a new version of the policy"},
			{"WrongDigest", Person, "the signature is of other content", "sign the digest that is declared"},
			{"NameMismatch", Person, "the signed bytes name another product or version than is declared", "declare what the release says that it is"},
			{"InvalidSignature", Person, "a commit's signature doesn't fit its bytes, or can't be read", "sign the commit again"},
			{"Revoked", Person, "the policy revokes the key or the digest", "release anew with a key in use"},
			{"Expired", Person, "a key or the policy is out of date; what runs goes on", "sign a new version of the policy"},
			{"BelowFloor", Person, "the version is below the policy's floor for the product", "take a newer release, or lower the floor by a new version of the policy"},
			{"Rollback", Person, "the version is below what ran here and isn't the release before it, or leads back across a minor version", "name it in `spec.rollback.to`; below the mark of a host, only `markReset` in the policy helps"},
			{"PolicyMissing", Person, "there is no policy, or no rule matches: denied", "pin one at installation, or add a rule for the kind, name and product"},
			{"PolicyChangeRefused", Person, "the new document isn't a valid successor; the accepted one goes on", "`lockstep trust check NEW --current OLD` says what is missing"},
			{"RootReplaced", Fine, "the root document was replaced by hand, without its predecessor's signatures", "if nobody of yours did that, treat it as a break-in"},
			{"UnpinnedImage", Person, "a tag stands where a digest is wanted", "write `repository@sha256:…`; `lockstep release build` prints it"},
			{"ForbiddenContent", Person, "the artifact holds links, traversal, duplicates or confused media types", "build it with `lockstep release build`"},
			{"LimitExceeded", Person, "more bytes, files, documents, signatures or streams than are looked at; the message has limit and value", "make it smaller; name signatures in `spec.desired.signatures`"},
			{"FetchFailed", Itself, "a registry, Git server or network didn't answer in full", "wait, or mend what the message names"},
			{"Accepted", Fine, "the policy in the object is the one in force", ""},
			{"TrustAccepted", Fine, "event: a new version of the policy took effect", ""},
		},
	}
}

func source() Group {
	return Group{
		"Git sources",
		"Conditions of GitSource; `WriteBackReady` for the status branch. Whatever is refused, the revision that was accepted before goes on.",
		[]Reason{
			{"Applied", Fine, "the newest revision, or the desired release, is applied", ""},
			{"InvalidSpec", Person, "the declaration can't work as it is written", "correct the field that the message names"},
			{"InvalidDesiredState", Person, "a document can't be decoded, or the API server refuses it; nothing of the commit was applied", "`lockstep validate PATH` says file and line"},
			{"PathNotFound", Person, "`spec.path` isn't in the revision", "commit the directory, or correct the path; it's never taken for \"delete all\""},
			{"EmptyDesiredState", Person, "`spec.path` declares nothing", "commit at least one document; emptiness is never taken for \"delete all\""},
			{"SelfReference", Person, "the repository would change how it is read itself, or add a source that the policy doesn't list", "change the GitSource with `kubectl`; list the URL under `sources` in the policy"},
			{"OwnedByOther", Person, "another source, release or tool owns the object", "remove it there; hand it over with `lockstep.dev/adopt-from`; or add the tool to `spec.adopt`"},
			{"AuthenticationFailed", Itself, "the server refused the credentials", "renew the Secret"},
			{"HostKeyMismatch", Person, "the SSH server isn't one of `known_hosts`", "find out why; then correct the Secret's `known_hosts`"},
			{"RefNotFound", Person, "the branch or tag isn't there any more", "push it again, or correct `spec.ref`"},
			{"RevisionNotFound", Person, "a revision that was asked for exists neither here nor on the server", "push it again"},
			{"Rewound", Person, "the ref no longer contains the accepted commit", "if that was meant: `lockstep source accept-rewind HASH`"},
			{"TagMoved", Person, "the accepted tag names another commit now", "make a new tag; if it was meant: `lockstep source accept-rewind HASH`"},
			{"Equivocation", Person, "one commit name came with two contents", "treat the Git server as broken into"},
			{"UnsupportedObjectFormat", Person, "a SHA-256 repository", "use one in Git's default format"},
			{"InvalidTree", Person, "a tree or commit that strict fsck refuses", "`git fsck --strict` in a clone says what"},
			{"LFSPointer", Person, "a file's content lies in Git LFS", "commit the file itself"},
			{"InsecureTransport", Person, "`http://` or `file://` without the process's flag for development", "use ssh or https"},
			{"SecretNotFound", Itself, "a Secret that the source names doesn't exist", "create it"},
			{"SecretNotBound", Itself, "the Secret doesn't say that it may serve this use and this host", "the message has the `kubectl annotate` command"},
			{"Unverified", Person, "`spec.verify` isn't set: whoever can push declares the cluster", "set `spec.verify: {mode: head}`"},
			{"SourceNotRead", Itself, "a release lies in a repository that isn't being read: its source was deleted, or the process has just begun", "if it stays, declare the GitSource again"},
			{"SourceUnverified", Person, "a release lies in a repository whose commits aren't verified", "set `spec.verify`, or declare the release as an image"},
			{"InsecureOptions", Person, "condition `Insecure`: a flag for development is on", "start the process without it"},
			{"ApplyFailed", Itself, "the API server didn't take the declared objects", "the message has its answer"},
			{"Pushed", Fine, "the status branch says how things stand", ""},
			{"StatusRewritten", Fine, "others had changed the status branch; it was written over, and their tip is named", "keep others from pushing there"},
			{"StatusPushDenied", Person, "the server's policy refuses the push", "let the status key push to `lockstep-status/*`"},
			{"StatusPushFailed", Itself, "network, server or a lost race", ""},
			{"StatusRefInvalid", Person, "the status branch would be somebody else's branch", "choose another `spec.cluster`"},
			{"Pruned", Fine, "event: an object left Git and was deleted, as it allowed; or objects left a release", ""},
		},
	}
}
