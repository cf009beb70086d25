// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-dev/lockstep/config/reasons"
	"github.com/lockstep-dev/lockstep/config/v1alpha1"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/reconciler/excluded"
	"github.com/lockstep-dev/lockstep/reconciler/inventory"
	"github.com/lockstep-dev/lockstep/reconciler/managedfields"
	"github.com/lockstep-dev/lockstep/reconciler/state"
)

func newExplainCommand() *cobra.Command {
	var flags clusterFlags
	cmd := &cobra.Command{
		Use:   "explain KIND/NAME | [GROUP/]KIND/[NAMESPACE/]NAME | REASON",
		Short: "Explain the state of an object or a condition reason",
		Long: `Explain the state of an object or a condition reason.

explain traces an object from the commit through the source, the declared object,
the release and the manifest to the live object, and prints the cause of its
state: rejected, waiting, drifted, unmanaged, owned by another controller, or not
managed by Lockstep. It only reads.

For a condition reason, explain prints its meaning and what to do, without access to
a cluster.`,
		Example: `  lockstep explain clusterrelease/platform
  lockstep explain host/node-13
  lockstep explain deployment/web/api
  lockstep explain apps/Deployment/web/api
  lockstep explain ThresholdNotMet`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !strings.Contains(args[0], "/") {
				return explainReason(cmd.OutOrStdout(), args[0])
			}
			e, err := gather(cmd.Context(), &flags, args[0])
			if err != nil {
				return err
			}
			view := &explainView{now: time.Now(), statusView: statusView{now: time.Now(), colour: useColour(cmd.OutOrStdout())}}
			_, err = io.WriteString(cmd.OutOrStdout(), view.render(e))
			return err
		},
	}
	flags.register(cmd)
	return cmd
}

// explainReason prints an entry of the reference of reasons.
func explainReason(out io.Writer, name string) error {
	r, ok := reasons.Find(name)
	if !ok {
		return invalid(fmt.Errorf("%.100q is neither an object (KIND/NAME, for example clusterrelease/platform) nor a condition reason of Lockstep", name))
	}
	if err := printf(out, "%s: %s\n", r.Name, r.Meaning); err != nil {
		return err
	}
	if r.Recovery != reasons.None {
		if err := printf(out, "  retried automatically: %s\n", r.Recovery); err != nil {
			return err
		}
	}
	if r.Action == "" {
		return nil
	}
	return printf(out, "  to do: %s\n", strings.ReplaceAll(r.Action, "`", ""))
}

// evidence is what an explanation is based on.
type evidence struct {
	id      payload.ObjectID
	objects objects
	// live and meta are the live object; nil if it doesn't exist.
	live     *unstructured.Unstructured
	metadata *metav1.PartialObjectMetadata
	// held are the inventory entries of the object; holder is the apply set
	// that the live object's labels name, "" for none.
	held   []inventory.Held
	holder string
	// excluded are the releases whose selection excludes it; read only if no
	// inventory contains it.
	excluded []excluded.Found
	// source is the GitSource that declares the object, declaredHash the hash of
	// the declared spec; "" for none.
	source, declaredHash string
	// nodeLabels are those of a host's Node.
	nodeLabels labels.Set
	// problems are errors of reads that the explanation can do without.
	problems []string
}

// ours returns the object if it is one of Lockstep's kinds in its namespace.
func (e *evidence) declared() (client.Object, bool) {
	if e.id.Group != v1alpha1.Group || e.id.Namespace != v1alpha1.Namespace {
		return nil, false
	}
	for _, obj := range e.objects.list() {
		if obj.GetName() == e.id.Name && kindOf(obj) == e.id.Kind {
			return obj, true
		}
	}
	return nil, false
}

// kindOf returns the kind of an object of Lockstep's.
func kindOf(obj client.Object) string {
	switch obj.(type) {
	case *v1alpha1.GitSource:
		return v1alpha1.KindGitSource
	case *v1alpha1.ClusterRelease:
		return v1alpha1.KindClusterRelease
	case *v1alpha1.NodeOS:
		return v1alpha1.KindNodeOS
	case *v1alpha1.Host:
		return v1alpha1.KindHost
	case *v1alpha1.TrustPolicy:
		return v1alpha1.KindTrustPolicy
	}
	return ""
}

// gather reads the evidence about an object.
func gather(ctx context.Context, flags *clusterFlags, arg string) (*evidence, error) {
	c, err := flags.client()
	if err != nil {
		return nil, err
	}
	cfg, err := flags.config()
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", cfg.Host, err)
	}
	e := &evidence{}
	if e.objects, err = readObjects(ctx, c); err != nil {
		return nil, err
	}
	var gvk schema.GroupVersionKind
	if own, err := parseObjectArg(arg); err == nil {
		gvk = v1alpha1.GroupVersion().WithKind(kindOf(own))
		e.id = payload.ObjectID{Group: gvk.Group, Kind: gvk.Kind, Namespace: v1alpha1.Namespace, Name: own.GetName()}
	} else if e.id, gvk, err = resolveObject(restmapper.NewShortcutExpander(
		restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kube.Discovery())), kube.Discovery(), nil), arg); err != nil {
		return nil, err
	}
	if err := e.readLive(ctx, c, gvk); err != nil {
		return nil, err
	}
	maps := kube.CoreV1().ConfigMaps(v1alpha1.Namespace)
	e.held, e.problems, err = inventory.FindHeld(ctx, maps, e.id)
	if err != nil {
		e.problems = append(e.problems, err.Error())
	}
	if len(e.held) == 0 {
		if e.excluded, err = excluded.Find(ctx, maps, e.id); err != nil {
			e.problems = append(e.problems, err.Error())
		}
	}
	store := state.New(maps)
	if err := store.Load(ctx); err != nil {
		e.problems = append(e.problems, err.Error())
	} else if e.id.Group == v1alpha1.Group {
		e.source, e.declaredHash, _ = store.Owner(e.id.Kind, e.id.Name)
	}
	return e, nil
}

// readLive reads the object and, separately, its metadata: decoding the object
// would reorder its managed fields.
func (e *evidence) readLive(ctx context.Context, c client.Client, gvk schema.GroupVersionKind) error {
	key := client.ObjectKey{Namespace: e.id.Namespace, Name: e.id.Name}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(gvk)
	err := c.Get(ctx, key, live)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", e.id, err)
	}
	partial := &metav1.PartialObjectMetadata{}
	partial.SetGroupVersionKind(gvk)
	if err := c.Get(ctx, key, partial); err != nil {
		return fmt.Errorf("read %s: %w", e.id, err)
	}
	e.live, e.metadata, e.holder = live, partial, managedfields.Owner(partial)
	if e.id.Group != v1alpha1.Group || e.id.Kind != v1alpha1.KindHost {
		return nil
	}
	var node corev1.Node
	if err := c.Get(ctx, client.ObjectKey{Name: e.id.Name}, &node); err == nil {
		e.nodeLabels = node.Labels
	}
	return nil
}

// resolveObject parses [GROUP/]KIND/[NAMESPACE/]NAME. Kinds may be plural, short
// and in any case; the group may follow the kind, as in
// deployments.apps/web/api.
func resolveObject(mapper meta.RESTMapper, arg string) (payload.ObjectID, schema.GroupVersionKind, error) {
	parts := strings.Split(arg, "/")
	if slices.Contains(parts, "") {
		return payload.ObjectID{}, schema.GroupVersionKind{}, invalid(fmt.Errorf("object %.200q has an empty part: want [GROUP/]KIND/[NAMESPACE/]NAME", arg))
	}
	kind, rest := schema.ParseGroupResource(strings.ToLower(parts[0])), parts[1:]
	gvk, err := mapper.KindFor(kind.WithVersion(""))
	if err != nil && len(parts) > 2 {
		kind, rest = schema.GroupResource{Group: strings.ToLower(parts[0]), Resource: strings.ToLower(parts[1])}, parts[2:]
		gvk, err = mapper.KindFor(kind.WithVersion(""))
	}
	if err != nil {
		return payload.ObjectID{}, gvk, invalid(fmt.Errorf("object %.200q: the cluster serves no such kind; want [GROUP/]KIND/[NAMESPACE/]NAME, for example deployment/web/api: %w", arg, err))
	}
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return payload.ObjectID{}, gvk, fmt.Errorf("kind %s: %w", gvk.Kind, err)
	}
	id := payload.ObjectID{Group: gvk.Group, Kind: gvk.Kind, Name: rest[len(rest)-1]}
	namespaced := mapping.Scope.Name() == meta.RESTScopeNameNamespace
	switch {
	case namespaced && len(rest) == 2:
		id.Namespace = rest[0]
	case namespaced:
		return id, gvk, invalid(fmt.Errorf("%s is namespaced: want %s/NAMESPACE/NAME", gvk.Kind, strings.ToLower(gvk.Kind)))
	case len(rest) != 1:
		return id, gvk, invalid(fmt.Errorf("%s isn't namespaced: want %s/NAME", gvk.Kind, strings.ToLower(gvk.Kind)))
	}
	return id, gvk, nil
}
