// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reasons

func trust() Group {
	return Group{
		"Signatures and policy",
		"Conditions `ReleaseAccepted`, `ReleaseVerified`, `OSVerified` and `SourceVerified`, and those of TrustPolicy; errors of `lockstep release verify` and `lockstep trust check`. [Trust](../trust.md) defines the terms.",
		[]Reason{
			{"Verified", None, "the signatures satisfy every matching rule", ""},
			{"Unsigned", Automatic, "no signature was found", "sign with `lockstep release sign` or `lockstep os sign`; sign a commit with `git commit -S`"},
			{"ThresholdNotMet", Automatic, "fewer valid signatures than the role requires", "have the key holders named in the message sign"},
			{"WrongAuthority", Operator, "no signature is by a key of the required role", "sign with a key of the role, or add the key to the role in a new policy version"},
			{"WrongDigest", Operator, "the signature is for other content", "sign the declared digest"},
			{"NameMismatch", Operator, "the signed content declares another product or version", "set the product and version that the release declares"},
			{"InvalidSignature", Operator, "a commit signature is unreadable or doesn't match the commit", "sign the commit again"},
			{"Revoked", Operator, "the policy revokes the key or the digest", "sign or build again with a key that isn't revoked"},
			{"Expired", Operator, "a key or the policy has expired; the current release is still reconciled", "sign a new policy version"},
			{"BelowFloor", Operator, "the version is below the policy's floor for the product, or below the highest version committed on the host", "use a newer version, or lower the floor in a new policy version"},
			{"Rollback", Operator, "the version is older than the accepted one and isn't the preceding release, or it crosses a Kubernetes minor version; for a pool: it never committed the older OS", "set `spec.rollback`; if this cluster never accepted the version, also set `markReset` in a new policy version"},
			{"PolicyMissing", Operator, "no policy is installed, or no rule matches the object", "pin the policy at installation, or add a rule for the kind, name and product"},
			{"PolicyChangeRefused", Operator, "the new document isn't a valid successor of the accepted one, which stays active", "run `lockstep trust check NEW --current OLD` to list what is missing"},
			{"RootReplaced", None, "the root document was replaced by hand, without signatures of its predecessor", "if this wasn't intended, treat it as a compromise"},
			{"WaiverInvalid", Operator, "a waiver can't be read, or one of its fields is missing", "sign it again with `lockstep release waive`"},
			{"UnpinnedImage", Operator, "the image is referenced by tag, not by digest", "use `repository@sha256:…`, as `lockstep release build` prints it"},
			{"ForbiddenContent", Operator, "the artifact contains links, path traversal, duplicates or conflicting media types", "build it with `lockstep release build`"},
			{"LimitExceeded", Operator, "a limit on bytes, files, documents, signatures or streams is exceeded; the message has limit and value", "reduce the content; for signatures, list them in `spec.desired.signatures`"},
			{"FetchFailed", Automatic, "a registry, Git server or network failed to deliver the content", "fix the cause in the message if it persists"},
			{"Accepted", None, "the policy in the object is the active one", ""},
			{"TrustAccepted", None, "event: a new policy version is active", ""},
		},
	}
}

func source() Group {
	return Group{
		"Git sources",
		"Conditions of GitSource, and `WriteBackReady` for the status branch. If a revision is rejected, the previously accepted one is still reconciled.",
		[]Reason{
			{"Applied", None, "the newest revision, or the desired release, is applied", ""},
			{"InvalidSpec", Operator, "a field of the spec is invalid", "correct the field in the message"},
			{"InvalidDesiredState", Operator, "a document can't be decoded, or the API server rejects it; no part of the commit was applied", "run `lockstep validate PATH`, which prints file and line"},
			{"PathNotFound", Operator, "the revision doesn't contain `spec.path`; nothing is deleted", "commit the directory, or correct the path"},
			{"EmptyDesiredState", Operator, "`spec.path` contains no documents; nothing is deleted", "commit at least one document"},
			{"SelfReference", Operator, "the repository changes its own GitSource, or adds one that the policy doesn't list", "change the GitSource with `kubectl`, or add the URL to `sources` in the policy"},
			{"OwnedByOther", Operator, "another source, release or tool manages the object", "remove it there; add the tool, or the release if it was deleted or left Git, to `spec.adopt`"},
			{"RemovedFromGit", Operator, "the declaration left Git and the object was kept: it starts no target, host or prune; hosts in flight finish, and a release is still repaired", "declare it again, or delete it with the command in the message"},
			{"AuthenticationFailed", Automatic, "the server rejected the credentials", "renew the Secret"},
			{"HostKeyMismatch", Operator, "the host key of the SSH server isn't in `known_hosts`", "verify the new key, then update `known_hosts` in the Secret"},
			{"RefNotFound", Operator, "the branch or tag doesn't exist", "push it, or correct `spec.ref`"},
			{"RevisionNotFound", Operator, "the revision exists neither in the local mirror nor on the server", "push it again"},
			{"Rewound", Operator, "the ref no longer contains the accepted commit", "if intended, run `lockstep source accept-rewind HASH`"},
			{"TagMoved", Operator, "the accepted tag points to another commit", "create a new tag; if intended, run `lockstep source accept-rewind HASH`"},
			{"Equivocation", Operator, "the server sent different contents for one commit hash", "treat the Git server as compromised"},
			{"UnsupportedObjectFormat", Operator, "the repository uses SHA-256 objects", "use a SHA-1 repository, Git's default"},
			{"InvalidTree", Operator, "a tree or commit fails strict fsck", "run `git fsck --strict` in a clone"},
			{"LFSPointer", Operator, "a file is stored in Git LFS", "commit the file itself"},
			{"InsecureTransport", Operator, "the URL uses `http://` or `file://` without the insecure option", "use ssh or https"},
			{"SecretNotFound", Automatic, "the referenced Secret doesn't exist", "create it"},
			{"SecretNotBound", Automatic, "the Secret isn't bound to this use and host", "run the `kubectl annotate` command in the message"},
			{"Unverified", Operator, "`spec.verify` isn't set, so anyone who can push controls the cluster", "set `spec.verify: {mode: head}`"},
			{"SourceNotRead", Automatic, "the release's GitSource was deleted, is suspended, or wasn't fetched yet after a restart", "if it persists, create or resume the GitSource"},
			{"SourceUnverified", Operator, "the release is in a repository whose commits aren't verified", "set `spec.verify`, or declare the release by image"},
			{"InsecureOptions", Operator, "condition `Insecure`: an insecure option is set", "for production, remove the flag or setting in the message"},
			{"ApplyFailed", Automatic, "the API server failed to apply the declared objects", "see the error in the message"},
			{"Pushed", None, "the status branch is up to date", ""},
			{"StatusRewritten", None, "the status branch was changed externally and was overwritten; the message has its previous commit", "restrict pushes to the status branch"},
			{"StatusPushDenied", Operator, "a policy of the Git server rejects the push", "allow the status key to push to `lockstep-status/*`"},
			{"StatusPushFailed", Automatic, "the push failed: network, server or a concurrent push", ""},
			{"StatusRefInvalid", Operator, "the cluster name is invalid for a status branch", "set another `spec.cluster`"},
			{"Pruned", None, "event: objects were deleted because Git or the release no longer contains them", ""},
		},
	}
}
