// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reasons

func release() Group {
	return Group{
		"Releases",
		"Conditions of ClusterRelease, beside those of signatures. A refused release never stops the one that runs.",
		[]Reason{
			{"AsExpected", Fine, "nothing stands in the way", ""},
			{"PayloadLoaded", Fine, "the desired release was verified and loaded", ""},
			{"Updating", Fine, "the release is on its way; `status.progress` says how far", ""},
			{"Pending", Itself, "the first look isn't over, or another release that declares the object is being loaded", ""},
			{"RetrievePayload", Itself, "the release is being fetched", ""},
			{"VerifyPayload", Itself, "its signatures are being checked", ""},
			{"LoadPayload", Itself, "its manifests are being read", ""},
			{"PreconditionChecks", Itself, "it's being looked at what may hold it back", ""},
			{"NoRelease", Itself, "nothing is accepted yet", ""},
			{"Paused", Person, "`lockstep pause` set a brake", "`lockstep resume KIND/NAME`"},
			{"Suspended", Person, "`spec.suspend` is set", "unset it in Git"},
			{"NotFromSource", Itself, "the object isn't what Git, or the release that carries it, declares; it isn't acted on", "it's put back; if not, commit the change, or delete what nobody declares"},
			{"DependencyNotReady", Itself, "a release in `spec.dependsOn` isn't level", "`lockstep explain clusterrelease/NAME` for that one"},
			{"HostsDisabled", Person, "the reconciler has no certificate for agents", "start it with `--pki-dir`"},
			{"RetrievalFailed", Itself, "the release couldn't be fetched or read", ""},
			{"NoPayload", Itself, "a retriever returned nothing", "report it: a defect of ours"},
			{"PayloadInvalid", Person, "a manifest can't be read, or contradicts another; file and line are named", "`lockstep release inspect` on your side, then build anew"},
			{"ForbiddenObject", Person, "the release carries an object that no release may: Lockstep's own, its roles, its admission", "take it out; only products under `selfUpdate` may carry some"},
			{"PreconditionsFailed", Person, "several checks hold the update back; the message has each", "as for each of them"},
			{"GiantHop", Person, "a minor version is left out, the major one changes, or the release asks for a newer start", "update to the version in between first"},
			{"Upgradeable", Itself, "something in the cluster objects to an upgrade: an override, a ClusterOperator, a deletion that isn't over, a halted pool, hosts that lag behind; it holds minor and major versions back and is a warning for patches", "settle what the message names"},
			{"MultipleReasons", Itself, "several things object to an upgrade; the message has each", "as for each of them"},
			{"ResourceDeletionInProgress", Itself, "objects that are to go aren't gone yet; that holds minor updates back", "see their finalizers"},
			{"NotUpgradeable", Itself, "a ClusterOperator objects to an upgrade and gives no reason", "ask that operator"},
			{"VersionFloor", Person, "the version is below the policy's floor", "take a newer one"},
			{"RecommendedUpdate", Fine, "warning: the release doesn't name the running version among its predecessors", ""},
			{"HostSkew", Itself, "a kubelet is newer than the API server, or more than three minor versions older; it holds a release back that says which Kubernetes it carries, and is a warning else", "bring the hosts along first"},
			{"APIRemoval", Itself, "the API server doesn't serve a kind of the release, and nothing in the release brings it; a warning for a kind of an API service that comes along", "install its definition first, build the release for this server, or leave the objects to people by `spec.overrides`"},
			{"StoredVersions", Person, "objects are stored in a version that a definition drops", "migrate them, then clean `status.storedVersions`"},
			{"InvalidHealthRule", Person, "a health rule of the release can't be evaluated; it is refused as a whole", "correct the rule that the message names"},
			{"PruneGuard", Person, "more objects would be deleted than `spec.prune.maxPercent` allows", "look why; then raise the fraction"},
			{"DryRunRefused", Itself, "the API server refused some objects in the trial run; none was applied", "the message has the first"},
			{"MultipleErrors", Itself, "several objects failed; the message has the first ones", "as for each of them"},
			{"ManifestNotApplied", Itself, "an object couldn't be applied, for a cause without a name of its own", "the message has it"},
			{"ClusterReleaseOverrides", Fine, "overrides leave objects to people, and hold minor updates back", "end them when they have served"},
			{"DriftRepaired", Fine, "event: others changed or removed objects, and they were put back", "if it goes on, `lockstep explain KIND/NAMESPACE/NAME` names the other writer"},
			{"Orphaned", Fine, "event: objects left the release and were kept, for the cause in the message", "delete them by hand if they are to go"},
			{"FieldYielded", Fine, "fields are left to another controller: an autoscaler, or one that took them again and again", "if they are to be ours, set `lockstep.dev/ssa: force` on the manifest"},
		},
	}
}

func object() Group {
	return Group{
		"Objects of a release",
		"`status.progress.blocking`, `Failing`, and metric `lockstep_release_payload_errors_total`: why an object isn't as its manifest.",
		[]Reason{
			{"ResourceInvalid", Person, "the API server calls the object invalid", "correct the manifest"},
			{"ResourceTooLarge", Person, "the object is larger than the API server takes", "split it"},
			{"FieldImmutable", Person, "the manifest changes a field that can't be changed", "give it another name, or set `lockstep.dev/replace: \"true\"` on the manifest: it is deleted and made anew"},
			{"Forbidden", Person, "the applying account, or for declared objects the reconciler, isn't allowed to", "give `spec.serviceAccountName` the right"},
			{"Unauthorized", Itself, "the API server doesn't know the reconciler's token", ""},
			{"QuotaExceeded", Itself, "a quota of the namespace is used up", "raise it"},
			{"Conflict", Itself, "somebody wrote at the same moment", ""},
			{"TypeMissing", Itself, "the API server doesn't know the kind (yet)", "the definition belongs in an earlier run level"},
			{"NamespaceMissing", Itself, "the namespace doesn't exist (yet)", "it belongs in the release, in an earlier run level"},
			{"NamespaceTerminating", Itself, "the namespace is being deleted", "see what keeps it: its finalizers"},
			{"WebhookFailed", Itself, "an admission webhook can't be reached or took no dry run", "mend the webhook, or its `failurePolicy`"},
			{"WebhookDenied", Person, "an admission webhook or policy said no", "its words are in the message"},
			{"ServerOverloaded", Itself, "the API server asked for patience", ""},
			{"ServerUnreachable", Itself, "the API server couldn't be reached", ""},
			{"ServerError", Itself, "the API server failed inside", ""},
			{"Terminating", Itself, "the object is being deleted; it's made anew afterwards", "see its finalizers"},
			{"Protected", Person, "a delete manifest names an object that is never deleted: not made by the release, or a kind that holds data", "remove the delete manifest, and delete it by hand if meant"},
			{"InventoryFailed", Itself, "the list of a release's objects couldn't be read or written; nothing new is applied without it", "a format of a newer version needs that version"},
		},
	}
}

func health() Group {
	return Group{
		"Health of objects",
		"`status.progress.blocking`: applied, and not level yet, or ill since.",
		[]Reason{
			{"InProgress", Itself, "the controller of the object isn't done", ""},
			{"NotObserved", Itself, "its controller hasn't seen the new generation", "does the controller run?"},
			{"NotFound", Itself, "the object isn't there (yet)", ""},
			{"HealthCheckFailed", Itself, "the object says that it failed; it is looked at again", "`kubectl describe` it"},
			{"HealthCheckTimeout", Itself, "it wasn't level within `spec.timeout` or its component's", "see the object; the release goes on as soon as it is level"},
			{"InvalidCELExpression", Person, "a health rule of the release can't be evaluated", "correct the rule"},
			{"Unwatchable", Itself, "the kind can't be watched, so nothing can be told", "give the reconciler the right to list and watch it"},
			{"JobFailed", Person, "the Job gave up", "see its pods; a release that changes the Job runs it again, and so does deleting it unless it has a TTL"},
			{"JobSuspended", Itself, "the Job is suspended", "unsuspend it"},
			{"JobRunning", Itself, "the Job runs", ""},
			{"LoadBalancerPending", Itself, "the Service has no address yet", "does a load-balancer controller run?"},
			{"NamesNotAccepted", Person, "a definition's names clash with another's", "rename it"},
			{"NotEstablished", Itself, "a definition isn't served yet", ""},
			{"APIServiceNotAvailable", Itself, "a registered API isn't served", "see the Service and the pods behind it, and the certificate of its bundle"},
			{"ClaimLost", Person, "the volume of a claim doesn't exist any more", "restore it, or delete the claim if its data isn't needed"},
			{"ClusterOperatorNoVersions", Person, "the manifest of a ClusterOperator lists no versions to wait for", "list at least its version as `operator` in the manifest's `status.versions`"},
			{"ClusterOperatorNotAvailable", Itself, "a ClusterOperator isn't available", "ask that operator"},
			{"ClusterOperatorUpdating", Itself, "a ClusterOperator isn't at the release's versions yet", ""},
			{"ClusterOperatorDegraded", Itself, "a ClusterOperator says that it is degraded", "ask that operator"},
		},
	}
}
