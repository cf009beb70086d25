// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-dev/lockstep/config/trust"
	"github.com/lockstep-dev/lockstep/payload"
	"github.com/lockstep-dev/lockstep/payload/image"
)

// selectionFlags say which manifests of a payload are meant: what a
// ClusterRelease says by spec.profile, featureSet, featureGates and
// capabilities.
type selectionFlags struct {
	selection payload.Selection
}

func (f *selectionFlags) register(cmd *cobra.Command) {
	s := &f.selection
	cmd.Flags().StringVar(&s.Profile, "profile", "", "include profile, such as self-managed-high-availability")
	cmd.Flags().StringVar(&s.FeatureSet, "feature-set", "", "feature set; empty: the default one")
	cmd.Flags().StringSliceVar(&s.FeatureGates, "feature-gates", nil, "feature gates that are enabled; none: gates aren't evaluated")
	cmd.Flags().StringVar(&s.Baseline, "capabilities", payload.BaselineAll, "baseline of capabilities: "+strings.Join(payload.Baselines(), ", "))
	cmd.Flags().StringSliceVar(&s.Capabilities, "additional-capabilities", nil, "capabilities besides the baseline")
}

// options are those of a load by the selection.
func (f *selectionFlags) options() (payload.LoadOptions, error) {
	s := f.selection
	s.EvaluateGates = len(s.FeatureGates) > 0
	if err := s.Validate(); err != nil {
		return payload.LoadOptions{}, invalid(err)
	}
	return payload.LoadOptions{Selection: s}, nil
}

// payloadFlags say how a payload is found, opened and selected from.
type payloadFlags struct {
	verifyFlags
	selectionFlags
}

func (f *payloadFlags) register(cmd *cobra.Command) {
	f.verifyFlags.register(cmd)
	f.selectionFlags.register(cmd)
}

// open loads the payload of a folder, or of an image that verifies.
func (f *payloadFlags) open(ctx context.Context, arg string) (*payload.Payload, error) {
	opts, err := f.options()
	if err != nil {
		return nil, err
	}
	if isPath(arg) {
		files, err := folderTree(arg)
		if err != nil {
			return nil, err
		}
		return loaded(payload.LoadUnverified(files, opts))
	}
	if f.policy == "" {
		return nil, invalid(errors.New("an image is opened only if it's verified; name the policy that is in force by --trust"))
	}
	client, err := f.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	signed, err := f.verify(ctx, client, trust.KindRelease, arg)
	if err != nil {
		return nil, err
	}
	files, err := image.New(client, image.Limits{}).Tree(ctx, signed)
	if err != nil {
		return nil, err
	}
	return loaded(payload.Load(signed, files, opts))
}
