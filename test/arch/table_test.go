// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package arch

// module is the path that all packages of the project begin with.
const module = "github.com/lockstep-dev/lockstep/"

// imports lists for each package which of ours it may import. A name that ends
// in /... is a tree. Every package needs a line here and a sentence in
// docs/architecture.md.
//
// config/* lies below everything; sources, payload and nodeos are three
// domains that never import each other; reconciler/* uses them; cmd wires.
var imports = map[string][]string{
	"config":          {},
	"config/backoff":  {},
	"config/crd":      {},
	"config/files":    {},
	"config/outbound": {"config/files"},
	// A proxy and a server for tests.
	"config/outbound/outboundtest": {},
	"config/version":               {},
	"config/sanitize":              {},
	"config/trust":                 {"config/sanitize"},
	"config/v1alpha1":              {},
	// The reference of reasons, and the program that writes its page.
	"config/reasons":      {},
	"config/reasons/page": {"config/reasons"},

	"sources":         {"config/files", "config/sanitize"},
	"sources/desired": {"config/sanitize", "config/v1alpha1", "sources", "config/crd"},
	"sources/dir":     {"config/files", "config/sanitize", "sources"},
	"sources/forge":   {"config/sanitize", "sources"},
	"sources/git":     {"config/files", "config/outbound", "config/sanitize", "config/trust", "sources"},
	"sources/hook":    {"config/sanitize", "sources"},
	// The conformance suite of sources.
	"sources/sourcetest": {"sources"},

	// Verification lies below loading: payload.Load takes only what was
	// verified (docs/adr/0002-verification-below-loading.md).
	"payload":              {"payload/kinds", "config/files", "config/sanitize", "config/trust", "config/v1alpha1", "payload/verify"},
	"payload/build":        {"config/sanitize", "config/trust", "payload/..."},
	"payload/kinds":        {},
	"payload/image":        {"config/sanitize", "config/trust", "payload", "payload/registry", "payload/tree", "payload/verify"},
	"payload/precondition": {"config/version", "config/v1alpha1", "payload"},
	"payload/registry":     {"config/files", "config/outbound", "config/sanitize", "config/trust"},
	"payload/taskgraph":    {"payload/kinds", "payload"},
	"payload/tree":         {"config/files", "config/sanitize", "config/trust"},
	"payload/updates":      {"config/v1alpha1"},
	"payload/verify":       {"config/files", "config/sanitize", "config/trust", "payload/registry", "payload/tree"},

	"nodeos":               {"config/version", "config/sanitize"},
	"nodeos/agent":         {"config/files", "config/sanitize", "config/trust", "nodeos", "nodeos/agentpb", "nodeos/config", "nodeos/events", "nodeos/logs", "nodeos/mtls", "nodeos/platform", "nodeos/resource", "nodeos/runner", "nodeos/wire"},
	"nodeos/agentpb":       {},
	"nodeos/config":        {"config/files", "config/sanitize", "nodeos"},
	"nodeos/events":        {"config/sanitize", "nodeos"},
	"nodeos/fleet":         {"config/sanitize", "nodeos", "nodeos/agentpb", "config/backoff", "nodeos/mtls", "nodeos/wire"},
	"nodeos/host/hosttest": {"nodeos"},
	"nodeos/host/sim":      {"config/files", "config/sanitize", "nodeos"},
	"nodeos/logs":          {"config/sanitize", "nodeos"},
	"nodeos/mtls":          {"config/files"},
	"nodeos/platform":      {"config/files", "config/sanitize", "nodeos"},
	"nodeos/resource":      {"config/backoff", "config/sanitize", "nodeos"},
	"nodeos/runner":        {"config/backoff", "config/files", "config/sanitize", "nodeos"},
	"nodeos/tasks":         {"config/sanitize", "nodeos"},
	"nodeos/wire":          {"config/sanitize", "nodeos", "nodeos/agentpb"},

	"reconciler/state":            {"config/v1alpha1", "payload", "config/trust"},
	"reconciler/apply":            {"payload/kinds", "config/sanitize", "payload", "reconciler/inventory", "reconciler/live", "reconciler/managedfields"},
	"reconciler/drain":            {"config/sanitize", "config/v1alpha1", "nodeos", "reconciler/live"},
	"reconciler/gate":             {"config/sanitize", "config/v1alpha1", "nodeos", "reconciler/live"},
	"reconciler/health":           {"payload/kinds", "config/sanitize", "payload", "reconciler/live"},
	"reconciler/hosts":            {"config/sanitize", "config/v1alpha1", "nodeos", "nodeos/fleet", "reconciler/live"},
	"reconciler/excluded":         {"payload"},
	"reconciler/inventory":        {"payload", "reconciler/live"},
	"reconciler/ledger":           {"config/backoff", "config/version", "config/sanitize", "config/v1alpha1", "nodeos"},
	"reconciler/live":             {"payload/kinds", "config/sanitize", "payload"},
	"reconciler/managedfields":    {"payload", "payload/kinds", "reconciler/live"},
	"reconciler/plan":             {"config/...", "payload/...", "reconciler/...", "sources/..."},
	"reconciler/rollout":          {"config/backoff", "config/sanitize", "config/v1alpha1", "nodeos", "reconciler/ledger"},
	"reconciler/rollout/executor": {"config/sanitize", "config/v1alpha1", "nodeos", "nodeos/fleet", "reconciler/drain", "reconciler/gate", "reconciler/ledger", "reconciler/rollout"},
	"reconciler/status":           {"payload", "config/version", "config/sanitize", "config/v1alpha1", "reconciler/rollout", "reconciler/worker"},
	"reconciler/worker":           {"config/version", "config/sanitize", "config/v1alpha1", "payload", "payload/precondition", "payload/taskgraph", "payload/verify"},
	"reconciler/writeback":        {"config/sanitize", "config/v1alpha1", "reconciler/status", "sources"},
	// Controllers share reconciler/control and never import one another.
	"reconciler/control": {"config/sanitize", "config/v1alpha1", "payload/verify", "reconciler/state", "reconciler/status"},
	"reconciler/cluster": {"config/v1alpha1", "reconciler/apply", "reconciler/live"},
	"reconciler/policy":  {"config/trust", "config/v1alpha1", "reconciler/control", "reconciler/status"},
	"reconciler/source":  {"config/outbound", "config/sanitize", "config/trust", "config/v1alpha1", "payload/verify", "reconciler/control", "reconciler/state", "reconciler/status", "sources", "sources/desired", "sources/dir", "sources/git"},
	"reconciler/release": {"config/sanitize", "config/trust", "config/v1alpha1", "config/version", "payload", "payload/image", "payload/precondition", "payload/taskgraph", "payload/verify", "reconciler/apply", "reconciler/cluster", "reconciler/control", "reconciler/excluded", "reconciler/health", "reconciler/ledger", "reconciler/live", "reconciler/state", "reconciler/status", "reconciler/worker"},
	"reconciler/pool":    {"config/sanitize", "config/trust", "config/v1alpha1", "nodeos/fleet", "nodeos/mtls", "payload", "payload/verify", "reconciler/control", "reconciler/drain", "reconciler/hosts", "reconciler/ledger", "reconciler/rollout/executor", "reconciler/state", "reconciler/status", "sources", "sources/desired"},
	"reconciler":         {"config/outbound", "config/trust", "config/v1alpha1", "payload/image", "payload/registry", "reconciler/...", "sources", "sources/git"},

	"cmd/lockstep":            {"..."},
	"cmd/lockstep-agent":      {"..."},
	"cmd/lockstep-reconciler": {"..."},
	"test/arch":               {},
	"test/bench":              {"..."},
	"test/controlplane":       {"config/crd"},
	"test/controlplane/build": {"test/controlplane"},
	"test/demo":               {"..."},
	"test/e2e":                {"..."},
	"test/openshift":          {},
	"test/workload":           {"payload"},
	"test/simnode":            {"nodeos", "nodeos/host/sim", "test/controlplane"},
	"test/simnode/simnode":    {"test/simnode"},
	"test/examples":           {"payload", "payload/build", "test/controlplane"},
	"test/vm":                 {"..."},
	"test/env":                {"..."},
	"test/controlenv":         {"config/v1alpha1", "reconciler/control", "reconciler/state", "test/controlplane"},
}

// restricted lists which of our packages may import a third-party package
// directly; an empty list means none.
var restricted = map[string][]string{
	// They read COSIGN_* from the environment, start programs and fetch.
	"github.com/sigstore/cosign/v2/cmd/...":           {},
	"github.com/sigstore/cosign/v2/pkg/signature":     {},
	"github.com/sigstore/cosign/v2/pkg/policy":        {},
	"github.com/sigstore/cosign/v2/pkg/cosign":        {"payload/verify", "payload/build"},
	"github.com/go-git/go-git/v5/...":                 {"sources/...", "cmd/lockstep", "test/..."},
	"k8s.io/client-go/...":                            {"reconciler/...", "cmd/lockstep", "cmd/lockstep-reconciler", "test/...", "sources/desired", "payload/build"},
	"sigs.k8s.io/controller-runtime/...":              {"reconciler", "reconciler/...", "cmd/lockstep", "cmd/lockstep-reconciler", "test/..."},
	"sigs.k8s.io/kustomize/...":                       {"sources/desired", "payload/build", "cmd/lockstep", "test/..."},
	"github.com/google/go-containerregistry/...":      {"payload/...", "cmd/...", "test/..."},
	"google.golang.org/grpc/...":                      {"nodeos/...", "cmd/...", "test/..."},
	"github.com/spf13/cobra":                          {"cmd/..."},
	"github.com/lockstep-dev/lockstep/test/...":       {"test/..."},
	"github.com/lockstep-dev/lockstep/nodeos/agentpb": {"nodeos/...", "cmd/...", "test/..."},
}

// unlinked lists what a program must not contain, however indirectly.
var unlinked = map[string][]string{
	// The agent works without Kubernetes and Git.
	"cmd/lockstep-agent": {"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...", "github.com/go-git/go-git/..."},
	// Test code and the host's side are not linked into the reconciler.
	"cmd/lockstep-reconciler": {"github.com/lockstep-dev/lockstep/test/...", "github.com/lockstep-dev/lockstep/nodeos/runner", "github.com/lockstep-dev/lockstep/nodeos/tasks", "github.com/lockstep-dev/lockstep/nodeos/host/..."},
}
