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

// selectionFlags select the manifests of a payload, as spec.profile, featureSet,
// featureGates and capabilities of a ClusterRelease do.
type selectionFlags struct {
	selection payload.Selection
}

func (f *selectionFlags) register(cmd *cobra.Command) {
	s := &f.selection
	cmd.Flags().StringVar(&s.Profile, "profile", "", "include profile, for example self-managed-high-availability")
	cmd.Flags().StringVar(&s.FeatureSet, "feature-set", "", "feature set (default: the default feature set)")
	cmd.Flags().StringSliceVar(&s.FeatureGates, "feature-gates", nil, "enabled feature gates; without them gates aren't evaluated")
	cmd.Flags().StringVar(&s.Baseline, "capabilities", payload.BaselineAll, "baseline of capabilities: "+strings.Join(payload.Baselines(), ", "))
	cmd.Flags().StringSliceVar(&s.Capabilities, "additional-capabilities", nil, "capabilities in addition to the baseline")
}

// options returns the options for loading the selection.
func (f *selectionFlags) options() (payload.LoadOptions, error) {
	s := f.selection
	s.EvaluateGates = len(s.FeatureGates) > 0
	if err := s.Validate(); err != nil {
		return payload.LoadOptions{}, invalid(err)
	}
	return payload.LoadOptions{Selection: s}, nil
}

// payloadFlags have the flags for opening a payload.
type payloadFlags struct {
	verifyFlags
	selectionFlags
}

func (f *payloadFlags) register(cmd *cobra.Command) {
	f.verifyFlags.register(cmd)
	f.selectionFlags.register(cmd)
}

// open loads the payload of a folder or of a verified image.
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
		return nil, invalid(errors.New("--trust-policy is required: images are opened only after verification"))
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
