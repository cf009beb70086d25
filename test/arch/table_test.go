// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package arch

// module is the path that all packages of the project begin with.
const module = "github.com/lockstep-dev/lockstep/"

// imports says for each package which of ours it may import. A name that ends
// in /... stands for a tree. A package that isn't here may not exist: give it
// a line here and a sentence in docs/architecture.md.
//
// config/* lies below all; sources, payload and nodeos are three domains that
// never import one another; reconciler/* uses them; cmd wires.
var imports = map[string][]string{
	"config":          {},
	"config/crd":      {},
	"config/foreign":  {},
	"config/trust":    {"config/foreign"},
	"config/v1alpha1": {},
	// The reference of reasons; its page is written by the program beside it.
	"config/reasons":      {},
	"config/reasons/page": {"config/reasons"},

	"sources":         {"config/foreign"},
	"sources/desired": {"config/foreign", "config/v1alpha1", "sources", "config/crd"},
	"sources/dir":     {"config/foreign", "sources"},
	"sources/forge":   {"config/foreign", "sources"},
	"sources/git":     {"config/foreign", "config/trust", "sources"},
	"sources/hook":    {"config/foreign", "sources"},
	// The conformance suite of sources.
	"sources/sourcetest": {"sources"},

	// Verification lies below loading: payload.Load takes only what was
	// verified (docs/adr/0002-verify-lies-below-payload.md).
	"payload":              {"config/foreign", "config/trust", "config/v1alpha1", "payload/verify"},
	"payload/build":        {"config/foreign", "config/trust", "payload/..."},
	"payload/image":        {"config/foreign", "config/trust", "payload", "payload/registry", "payload/tree", "payload/verify"},
	"payload/precondition": {"config/v1alpha1", "payload"},
	"payload/registry":     {"config/foreign", "config/trust"},
	"payload/taskgraph":    {"payload"},
	"payload/tree":         {"config/foreign", "config/trust"},
	"payload/updates":      {"config/v1alpha1"},
	"payload/verify":       {"config/foreign", "config/trust", "payload/registry", "payload/tree"},

	"nodeos":               {"config/foreign"},
	"nodeos/agent":         {"config/foreign", "config/trust", "nodeos", "nodeos/agentpb", "nodeos/config", "nodeos/events", "nodeos/logs", "nodeos/mtls", "nodeos/platform", "nodeos/resource", "nodeos/runner", "nodeos/wire"},
	"nodeos/agentpb":       {},
	"nodeos/config":        {"config/foreign", "nodeos"},
	"nodeos/events":        {"config/foreign", "nodeos"},
	"nodeos/fleet":         {"config/foreign", "nodeos", "nodeos/agentpb", "nodeos/mtls", "nodeos/wire"},
	"nodeos/host/exec":     {"config/foreign", "nodeos"},
	"nodeos/host/hosttest": {"nodeos"},
	"nodeos/host/sim":      {"config/foreign", "nodeos"},
	"nodeos/host/uki":      {"config/foreign", "nodeos"},
	"nodeos/logs":          {"config/foreign", "nodeos"},
	"nodeos/mtls":          {},
	"nodeos/platform":      {"config/foreign", "nodeos"},
	"nodeos/resource":      {"config/foreign", "nodeos"},
	"nodeos/runner":        {"config/foreign", "nodeos"},
	"nodeos/tasks":         {"config/foreign", "nodeos"},
	"nodeos/wire":          {"config/foreign", "nodeos", "nodeos/agentpb"},

	"reconciler/accepted":         {"config/trust"},
	"reconciler/apply":            {"config/foreign", "payload", "reconciler/live"},
	"reconciler/drain":            {"config/foreign", "config/v1alpha1", "nodeos", "reconciler/live"},
	"reconciler/gate":             {"config/foreign", "config/v1alpha1", "nodeos", "reconciler/live"},
	"reconciler/health":           {"config/foreign", "payload", "reconciler/live"},
	"reconciler/hosts":            {"config/foreign", "config/v1alpha1", "nodeos", "nodeos/fleet", "reconciler/live"},
	"reconciler/leftout":          {"payload"},
	"reconciler/ledger":           {"config/foreign", "config/v1alpha1", "nodeos"},
	"reconciler/live":             {"config/foreign", "payload"},
	"reconciler/plan":             {"config/...", "payload/...", "reconciler/...", "sources/..."},
	"reconciler/rollout":          {"config/foreign", "config/v1alpha1", "nodeos", "reconciler/ledger"},
	"reconciler/rollout/executor": {"config/foreign", "config/v1alpha1", "nodeos", "nodeos/fleet", "reconciler/drain", "reconciler/gate", "reconciler/ledger", "reconciler/rollout"},
	"reconciler/status":           {"config/foreign", "config/v1alpha1", "reconciler/rollout", "reconciler/worker"},
	"reconciler/worker":           {"config/foreign", "config/v1alpha1", "payload", "payload/precondition", "payload/taskgraph"},
	"reconciler/writeback":        {"config/foreign", "config/v1alpha1", "reconciler/status", "sources"},
	"reconciler":                  {"config/...", "payload/...", "sources/...", "reconciler/...", "nodeos", "nodeos/fleet", "nodeos/mtls", "nodeos/agentpb", "nodeos/wire"},

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
	"test/shape":              {"payload"},
	"test/simnode":            {"nodeos", "nodeos/host/sim", "test/controlplane"},
	"test/simnode/simnode":    {"test/simnode"},
	"test/examples":           {"payload", "payload/build", "test/controlplane"},
	"test/vm":                 {"..."},
	"test/world":              {"..."},
}

// restricted says which of our packages may import a foreign one directly.
// Nobody else may; an empty list means nobody at all.
var restricted = map[string][]string{
	// They read COSIGN_* from the environment, start programs and fetch.
	"github.com/sigstore/cosign/v2/cmd/...":           {},
	"github.com/sigstore/cosign/v2/pkg/signature":     {},
	"github.com/sigstore/cosign/v2/pkg/policy":        {},
	"github.com/sigstore/cosign/v2/pkg/cosign":        {"payload/verify", "payload/build"},
	"github.com/go-git/go-git/v5/...":                 {"sources/...", "cmd/lockstep", "test/..."},
	"k8s.io/client-go/...":                            {"reconciler/...", "cmd/lockstep", "cmd/lockstep-reconciler", "test/...", "sources/desired"},
	"sigs.k8s.io/controller-runtime/...":              {"reconciler", "reconciler/...", "cmd/lockstep", "cmd/lockstep-reconciler", "test/..."},
	"sigs.k8s.io/kustomize/...":                       {"sources/desired", "payload/build", "cmd/lockstep", "test/..."},
	"github.com/google/go-containerregistry/...":      {"payload/...", "cmd/...", "test/..."},
	"google.golang.org/grpc/...":                      {"nodeos/...", "cmd/...", "test/..."},
	"github.com/spf13/cobra":                          {"cmd/..."},
	"github.com/lockstep-dev/lockstep/test/...":       {"test/..."},
	"github.com/lockstep-dev/lockstep/nodeos/agentpb": {"nodeos/...", "reconciler", "cmd/...", "test/..."},
}

// unlinked says what a program must not contain, however indirectly.
var unlinked = map[string][]string{
	// The agent works when Kubernetes doesn't, and knows no Git.
	"cmd/lockstep-agent": {"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/...", "github.com/go-git/go-git/..."},
	// Test equipment and the host's side stay out of what runs in a cluster.
	"cmd/lockstep-reconciler": {"github.com/lockstep-dev/lockstep/test/...", "github.com/lockstep-dev/lockstep/nodeos/runner", "github.com/lockstep-dev/lockstep/nodeos/tasks", "github.com/lockstep-dev/lockstep/nodeos/host/..."},
}
