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

// Registry resolves the task names of plans. It's filled explicitly, before a
// controller gets it, and not changed afterwards.
type Registry map[string]nodeos.TaskSetupFunc

// Check says which tasks of a plan the registry hasn't got.
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

// setup prepares a task; a nil function means that it's skipped.
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

// failureOf turns an error into data. Refusals are permanent: trying again
// asks the same question.
func failureOf(err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Reason: nodeos.ReasonOf(err, "TaskFailed"), Message: clip(err.Error())}
	f.Permanent = isRefusal(err)
	return f
}

// maxMessage bounds an error text that goes into the journal.
const maxMessage = 2048

func clip(s string) string {
	s = strings.ToValidUTF8(s, "")
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage], "") + fmt.Sprintf("… (%d bytes more)", len(s)-maxMessage)
}
