// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"os"
	"testing"

	"github.com/lockstep-dev/lockstep/test/controlenv"
	"github.com/lockstep-dev/lockstep/test/controlplane"
)

func TestMain(m *testing.M) { os.Exit(controlplane.Main(m)) }

var (
	must  = controlenv.Must
	epoch = controlenv.Epoch
)
