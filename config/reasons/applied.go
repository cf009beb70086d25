// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package reasons

func release() Group {
	return Group{
		"Releases",
		"Conditions of ClusterRelease, except those of signatures. If a release is rejected, the accepted one is still reconciled.",
		[]Reason{
			{"AsExpected", None, "no problem was found", ""},
			{"PayloadLoaded", None, "the desired release was verified and loaded", ""},
			{"Updating", None, "the release is being applied; `status.progress` has the details", ""},
			{"Pending", Automatic, "the first sync hasn't finished, or another release that contains the object is being loaded", ""},
			{"RetrievePayload", Automatic, "the release is being fetched", ""},
			{"VerifyPayload", Automatic, "its signatures are being verified", ""},
			{"LoadPayload", Automatic, "its manifests are being loaded", ""},
			{"PreconditionChecks", Automatic, "its preconditions are being evaluated", ""},
			{"NoRelease", Automatic, "no release is accepted yet", ""},
			{"Paused", Operator, "`lockstep pause` has paused the object", "run `lockstep resume KIND/NAME`"},
			{"Suspended", Operator, "`spec.suspend` is set", "remove it in Git"},
			{"NotFromSource", Automatic, "the object differs from Git, or from the release that contains it, and isn't acted on until it is restored", "if it persists, commit the change, or delete an object that isn't declared"},
			{"DependencyNotReady", Automatic, "a release in `spec.dependsOn` isn't ready", "run `lockstep explain clusterrelease/NAME` for it"},
			{"HostsDisabled", Operator, "the reconciler has no certificate for agents", "start it with `--pki-dir`"},
			{"RetrievalFailed", Automatic, "the release couldn't be fetched or read", ""},
			{"NoPayload", Automatic, "internal error: the retriever returned no payload", "report a bug"},
			{"PayloadInvalid", Operator, "a manifest is unreadable or conflicts with another; the message has file and line", "run `lockstep release inspect`, correct the manifest and build again"},
			{"ForbiddenObject", Operator, "the release contains an object that releases must not contain, such as Lockstep's own RBAC or admission policies", "remove it; products under `selfUpdate` may contain some"},
			{"PreconditionsFailed", Operator, "several preconditions block the update; the message lists them", "see the action for each"},
			{"GiantHop", Operator, "the update skips more minor versions than the release's maxMinorHop allows, changes the major version, or requires a newer starting version", "update to the intermediate version first"},
			{"Upgradeable", Automatic, "part of the cluster isn't upgradeable: an override, a ClusterOperator, a pending deletion, a halted pool or outdated hosts; it blocks minor and major updates and is a warning for patches", "resolve the cause in the message"},
			{"MultipleReasons", Automatic, "several parts of the cluster aren't upgradeable; the message lists them", "see the action for each"},
			{"ResourceDeletionInProgress", Automatic, "warning: deleted objects still exist", "check their finalizers"},
			{"PruneHeld", Automatic, "objects that left the release aren't deleted yet, because another release claims them or isn't loaded yet", "wait for that release, or remove its claim"},
			{"Pruning", Automatic, "objects that left the release are still being deleted; the release is complete regardless, and updates are accepted", "start the controller that removes the finalizers in the message, or remove them with `kubectl edit`"},
			{"NotUpgradeable", Automatic, "a ClusterOperator reports Upgradeable=False without a reason", "check that operator"},
			{"VersionFloor", Operator, "the version is below the policy's floor", "use a newer version"},
			{"RecommendedUpdate", None, "warning: the release doesn't list the running version among its predecessors", ""},
			{"HostSkew", Automatic, "a kubelet is newer than the API server, or more than three minor versions older; it blocks a release that declares its Kubernetes version, else it is a warning", "update the hosts first"},
			{"APIRemoval", Automatic, "neither the API server nor the release provides a kind of the release; it is a warning if the release's own API service does", "install its CRD first, build the release for this server, or exclude the objects with `spec.overrides`"},
			{"StoredVersions", Operator, "objects are stored in a version that a CRD removes", "migrate them, then remove the version from `status.storedVersions`"},
			{"InvalidHealthRule", Operator, "a health rule of the release can't be evaluated, so the release is rejected", "correct the rule in the message"},
			{"PruneGuard", Operator, "more objects would be deleted than `spec.prune.maxPercent` allows; none is deleted", "check the cause, then raise the percentage"},
			{"ManifestOrder", Operator, "an object needs another one that is applied after it and isn't in the cluster, so the update would wait for it until it times out; the message has their files and lines", "change the order and build again, or create the missing object"},
			{"DryRunRefused", Automatic, "the API server rejected objects in the dry run; none was applied", "see the first error in the message"},
			{"MultipleErrors", Automatic, "several objects failed; the message has the first ones", "see the action for each"},
			{"ManifestNotApplied", Automatic, "an object couldn't be applied, for a cause without its own reason", "see the error in the message"},
			{"ClusterReleaseOverrides", None, "active overrides leave objects unmanaged and block minor updates", "remove overrides that are no longer needed"},
			{"DriftRepaired", None, "event: objects were changed or deleted externally and were restored", "if it repeats, run `lockstep explain KIND/NAMESPACE/NAME` to find the other writer"},
			{"Orphaned", None, "event: objects were removed from the release and kept, for the cause in the message", "delete them by hand if they are no longer needed"},
			{"AdoptedFields", None, "event: an adopted object had fields of other managers; the release took those that it sets, and the others stay", "remove fields that nobody needs by hand, and stop tools that still write the object"},
			{"InventoryLost", Operator, "condition `InventoryIncomplete`: the release's inventory was lost, so that it doesn't know which of the objects in the message it created; these are never pruned", "delete them by hand when they leave the release; an object that is deleted earlier is recreated, and can be pruned again"},
			{"FieldYielded", None, "fields were yielded to another controller: an autoscaler, or one that repeatedly changes them", "to apply them anyway, set `lockstep.dev/ssa: force` on the manifest"},
		},
	}
}

func object() Group {
	return Group{
		"Objects of a release",
		"`status.progress.blocking`, `Failing` and metric `lockstep_release_payload_errors_total`: why an object isn't in sync.",
		[]Reason{
			{"ResourceInvalid", Operator, "the API server rejects the object as invalid", "correct the manifest"},
			{"ResourceTooLarge", Operator, "the object exceeds the API server's size limit", "split it"},
			{"FieldImmutable", Operator, "the manifest changes an immutable field", "rename the object, or set `lockstep.dev/replace: \"true\"` on the manifest to delete and recreate it"},
			{"Forbidden", Operator, "the applying ServiceAccount, or the reconciler for declared objects, lacks permission", "grant it to `spec.serviceAccountName`"},
			{"Unauthorized", Automatic, "the API server rejected the reconciler's token", ""},
			{"QuotaExceeded", Automatic, "a ResourceQuota of the namespace is exhausted", "raise it"},
			{"Conflict", Automatic, "the object was written concurrently", ""},
			{"TypeMissing", Automatic, "the API server doesn't serve the kind (yet)", "put its CRD in an earlier run level"},
			{"NamespaceMissing", Automatic, "the namespace doesn't exist (yet)", "put it in an earlier run level of the release"},
			{"NamespaceTerminating", Automatic, "the namespace is being deleted", "check its finalizers"},
			{"WebhookFailed", Automatic, "an admission webhook is unreachable or doesn't support dry run", "fix the webhook, or its `failurePolicy`"},
			{"WebhookDenied", Operator, "an admission webhook or policy rejected the object", "see its error in the message"},
			{"ServerOverloaded", Automatic, "the API server is throttling requests", ""},
			{"ServerUnreachable", Automatic, "the API server is unreachable", ""},
			{"ServerError", Automatic, "the API server returned an internal error", ""},
			{"Terminating", Automatic, "the object is being deleted; it is recreated afterwards", "check its finalizers"},
			{"Protected", Operator, "a delete manifest names an object that is never deleted: it wasn't created by the release, or its kind holds data", "remove the delete manifest; delete the object by hand if intended"},
			{"InventoryFailed", Automatic, "the release's inventory couldn't be read or written; nothing new is applied without it", "if a newer version wrote it, run that version"},
		},
	}
}

func health() Group {
	return Group{
		"Health of objects",
		"`status.progress.blocking`: the object is applied, but not ready yet or no longer healthy.",
		[]Reason{
			{"InProgress", Automatic, "the object's controller hasn't finished", ""},
			{"NotObserved", Automatic, "its controller hasn't observed the new generation", "check that the controller runs"},
			{"NotFound", Automatic, "the object doesn't exist (yet)", ""},
			{"HealthCheckFailed", Automatic, "the object reports a failure", "run `kubectl describe` on it"},
			{"HealthCheckTimeout", Automatic, "the object wasn't ready within `spec.timeout` or its component's timeout", "check the object; the release continues once it is ready"},
			{"InvalidCELExpression", Operator, "a health rule of the release can't be evaluated", "correct the rule"},
			{"Unwatchable", Automatic, "the kind can't be watched, so its health is unknown", "grant the reconciler list and watch on it"},
			{"JobFailed", Operator, "the Job failed", "check its pods; to run it again, change it in the release, or delete it unless it has a TTL"},
			{"JobSuspended", Automatic, "the Job is suspended", "resume it"},
			{"JobRunning", Automatic, "the Job is running", ""},
			{"LoadBalancerPending", Automatic, "the Service has no address yet", "check that a load-balancer controller runs"},
			{"NamesNotAccepted", Operator, "the names of a CRD conflict with those of another", "rename it"},
			{"NotEstablished", Automatic, "a CRD isn't served yet", ""},
			{"APIServiceNotAvailable", Automatic, "an API service isn't available", "check its Service, its pods and its CA bundle"},
			{"ClaimLost", Operator, "the volume of a PersistentVolumeClaim no longer exists", "restore it, or delete the claim if its data isn't needed"},
			{"ClaimPending", Automatic, "a PersistentVolumeClaim isn't bound to a volume yet", "check the provisioner of its storage class"},
			{"StorageClassMissing", Automatic, "a PersistentVolumeClaim names a storage class that doesn't exist, and no volume matches", "create the class, or recreate the claim with another one"},
			{"ClusterOperatorNoVersions", Operator, "the manifest of a ClusterOperator lists no versions to wait for", "list at least its version as `operator` in the manifest's `status.versions`"},
			{"ClusterOperatorNotAvailable", Automatic, "a ClusterOperator isn't available", "check that operator"},
			{"ClusterOperatorUpdating", Automatic, "a ClusterOperator hasn't reached the release's versions yet", ""},
			{"ClusterOperatorDegraded", Automatic, "a ClusterOperator reports that it is degraded", "check that operator"},
		},
	}
}
