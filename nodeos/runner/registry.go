// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-dev/lockstep/nodeos"
)

// Registry maps the task names of plans to tasks. It's filled before a
// controller uses it and immutable afterwards.
type Registry map[string]nodeos.TaskSetupFunc

// Check returns a refusal that lists the tasks of a plan missing in the registry.
func (r Registry) Check(plan []nodeos.Phase) error {
	missing := map[string]bool{}
	for _, p := range plan {
		for _, t := range slices.Concat(p.Tasks, p.Undo) {
			if r[t.Name] == nil {
				missing[t.Name] = true
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return nodeos.Refuse("UnknownTask", "this agent has no task %s; upgrade the agent",
		strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
}

// setup prepares a task; a nil function skips it.
func (r Registry) setup(seq nodeos.Sequence, t nodeos.Task, call nodeos.TaskCall) (nodeos.TaskExecutionFunc, string, error) {
	setup := r[t.Name]
	if setup == nil {
		return nil, t.Name, nodeos.Refuse("UnknownTask", "this agent has no task %s; upgrade the agent", t.Name)
	}
	call.Params = t.Params
	run, name := setup(seq, call)
	if name == "" {
		name = t.Name
	}
	return run, name, nil
}

// failureOf converts an error to data. Refusals are permanent: a retry would
// give the same result.
func failureOf(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Reason: nodeos.ReasonOf(err, "TaskFailed"), Message: truncate(err.Error())}
	f.Permanent = isRefusal(err)
	return f
}

// maxMessage is the maximum length of a journaled error message, in bytes.
const maxMessage = 2048

func truncate(s string) string {
	s = strings.ToValidUTF8(s, "")
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage], "") + fmt.Sprintf("… (%d more bytes)", len(s)-maxMessage)
}
