// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-dev/lockstep/config/sanitize"
	"github.com/lockstep-dev/lockstep/nodeos"
	"github.com/lockstep-dev/lockstep/nodeos/agentpb"
)

// LostToProto returns the event for missed events; zero means an unknown number.
func LostToProto(count uint64) *agentpb.Event {
	return &agentpb.Event{Payload: &agentpb.Event_Lost{Lost: &agentpb.LostEvent{Count: count}}}
}

// EventToProto converts an event; nil for a payload without a message type.
func EventToProto(e nodeos.Event) *agentpb.Event {
	out := &agentpb.Event{Id: e.ID.String(), Time: stamp(e.Time), OperationId: e.OperationID}
	switch p := e.Payload.(type) {
	case nodeos.EventSequenceStart, nodeos.EventSequenceStop, nodeos.EventSequenceRefused, nodeos.EventFatalSequencerError:
		sequenceToProto(out, p)
	case nodeos.EventPhase:
		out.Payload = &agentpb.Event_Phase{Phase: &agentpb.PhaseEvent{
			Sequence: p.Sequence.String(), Phase: p.Phase, Action: actionToProto(p.Action), Index: count(p.Index), Count: count(p.Count),
			Try: count(p.Try), Error: message(p.Error), Duration: span(p.Duration),
		}}
	case nodeos.EventTask:
		out.Payload = &agentpb.Event_Task{Task: &agentpb.TaskEvent{
			Sequence: p.Sequence.String(), Phase: p.Phase, Task: p.Task, Action: actionToProto(p.Action), Index: count(p.Index),
			Count: count(p.Count), Error: message(p.Error), Duration: span(p.Duration),
		}}
	case nodeos.EventProgress:
		out.Payload = &agentpb.Event_Progress{Progress: &agentpb.ProgressEvent{Task: p.Task, Done: p.Done, Total: p.Total, Unit: p.Unit}}
	case nodeos.EventTrial:
		out.Payload = &agentpb.Event_Trial{Trial: &agentpb.TrialEvent{
			What: p.What, Digest: p.Digest, Deadline: stamp(p.Deadline), Message: message(p.Message),
		}}
	case nodeos.EventRestart:
		out.Payload = &agentpb.Event_Restart{Restart: &agentpb.RestartEvent{Command: p.Cmd.String()}}
	case nodeos.EventServiceState:
		out.Payload = &agentpb.Event_Service{Service: &agentpb.ServiceEvent{Service: p.Service, State: p.State, Message: message(p.Message)}}
	case nodeos.EventConfigError:
		out.Payload = &agentpb.Event_Error{Error: &agentpb.ErrorEvent{What: "config", Error: message(p.Error)}}
	default:
		return nil
	}
	return out
}

func sequenceToProto(out *agentpb.Event, payload nodeos.Payload) {
	switch p := payload.(type) {
	case nodeos.EventSequenceStart:
		out.Payload = &agentpb.Event_Sequence{Sequence: &agentpb.SequenceEvent{
			Sequence: p.Sequence.String(), Action: agentpb.Action_ACTION_START, Phases: count(p.Phases), Resumed: p.Resumed,
		}}
	case nodeos.EventSequenceStop:
		out.Payload = &agentpb.Event_Sequence{Sequence: &agentpb.SequenceEvent{
			Sequence: p.Sequence.String(), Action: agentpb.Action_ACTION_STOP, State: StateToProto(p.State), Reason: p.Reason,
			Error: message(p.Error), Duration: span(p.Duration),
		}}
	case nodeos.EventSequenceRefused:
		out.Payload = &agentpb.Event_Refused{Refused: &agentpb.RefusedEvent{
			Sequence: p.Sequence.String(), Reason: p.Reason, Error: message(p.Error),
		}}
	case nodeos.EventFatalSequencerError:
		out.Payload = &agentpb.Event_Error{Error: &agentpb.ErrorEvent{What: p.Sequence.String(), Error: message(p.Error)}}
	}
}

// EventFromProto converts an event. Unknown event types have no payload.
func EventFromProto(e *agentpb.Event) nodeos.EventInfo {
	id, err := nodeos.ParseEventID(line(e.GetId()))
	if err != nil {
		id = nodeos.EventID{}
	}
	out := nodeos.EventInfo{Event: nodeos.Event{ID: id, Time: moment(e.GetTime()), OperationID: line(e.GetOperationId())}}
	switch p := e.GetPayload().(type) {
	case *agentpb.Event_Lost:
		out.Lost, out.LostUnknown = p.Lost.GetCount(), p.Lost.GetCount() == 0
	case *agentpb.Event_Sequence:
		out.Payload = sequenceFromProto(p.Sequence)
	case *agentpb.Event_Refused:
		out.Payload = nodeos.EventSequenceRefused{
			Sequence: sequenceNamed(p.Refused.GetSequence()), Reason: line(p.Refused.GetReason()), Error: message(p.Refused.GetError()),
		}
	case *agentpb.Event_Phase, *agentpb.Event_Task, *agentpb.Event_Progress:
		out.Payload = stepFromProto(e)
	case *agentpb.Event_Trial:
		out.Payload = nodeos.EventTrial{
			What: line(p.Trial.GetWhat()), Digest: line(p.Trial.GetDigest()), Deadline: moment(p.Trial.GetDeadline()),
			Message: message(p.Trial.GetMessage()),
		}
	case *agentpb.Event_Restart:
		out.Payload = nodeos.EventRestart{Cmd: commandNamed(p.Restart.GetCommand())}
	case *agentpb.Event_Service:
		out.Payload = nodeos.EventServiceState{
			Service: line(p.Service.GetService()), State: line(p.Service.GetState()), Message: message(p.Service.GetMessage()),
		}
	case *agentpb.Event_Error:
		out.Payload = errorFromProto(p.Error)
	}
	if out.Payload != nil {
		out.TypeURL = nodeos.TypeURLOf(out.Payload)
	}
	return out
}

func sequenceFromProto(p *agentpb.SequenceEvent) nodeos.Payload {
	sequence := sequenceNamed(p.GetSequence())
	if p.GetAction() == agentpb.Action_ACTION_STOP {
		return nodeos.EventSequenceStop{
			Sequence: sequence, State: StateFromProto(p.GetState()), Reason: line(p.GetReason()),
			Error: message(p.GetError()), Duration: DurationFromProto(p.GetDuration()),
		}
	}
	return nodeos.EventSequenceStart{Sequence: sequence, Phases: int(p.GetPhases()), Resumed: p.GetResumed()}
}

func stepFromProto(e *agentpb.Event) nodeos.Payload {
	switch {
	case e.GetPhase() != nil:
		p := e.GetPhase()
		return nodeos.EventPhase{
			Sequence: sequenceNamed(p.GetSequence()), Phase: line(p.GetPhase()), Index: int(p.GetIndex()), Count: int(p.GetCount()),
			Try: int(p.GetTry()), Action: actionFromProto(p.GetAction()), Error: message(p.GetError()), Duration: DurationFromProto(p.GetDuration()),
		}
	case e.GetTask() != nil:
		p := e.GetTask()
		return nodeos.EventTask{
			Sequence: sequenceNamed(p.GetSequence()), Phase: line(p.GetPhase()), Task: line(p.GetTask()), Index: int(p.GetIndex()),
			Count: int(p.GetCount()), Action: actionFromProto(p.GetAction()), Error: message(p.GetError()), Duration: DurationFromProto(p.GetDuration()),
		}
	default:
		p := e.GetProgress()
		return nodeos.EventProgress{Task: line(p.GetTask()), Done: p.GetDone(), Total: p.GetTotal(), Unit: line(p.GetUnit())}
	}
}

func errorFromProto(p *agentpb.ErrorEvent) nodeos.Payload {
	if p.GetWhat() == "config" {
		return nodeos.EventConfigError{Error: message(p.GetError())}
	}
	return nodeos.EventFatalSequencerError{Sequence: sequenceNamed(p.GetWhat()), Error: message(p.GetError())}
}

func actionToProto(a nodeos.EventAction) agentpb.Action {
	switch a {
	case nodeos.ActionStart:
		return agentpb.Action_ACTION_START
	case nodeos.ActionStop:
		return agentpb.Action_ACTION_STOP
	default:
		return agentpb.Action_ACTION_UNSPECIFIED
	}
}

func actionFromProto(a agentpb.Action) nodeos.EventAction {
	switch a {
	case agentpb.Action_ACTION_START:
		return nodeos.ActionStart
	case agentpb.Action_ACTION_STOP:
		return nodeos.ActionStop
	default:
		return nodeos.ActionNoop
	}
}

// sequenceNamed returns the sequence of that name; noop if unknown.
func sequenceNamed(name string) nodeos.Sequence {
	sequence, err := nodeos.ParseSequence(name)
	if err != nil {
		return nodeos.SequenceNoop
	}
	return sequence
}

// commandNamed returns the reboot command of that name; restart if unknown.
func commandNamed(name string) nodeos.RebootCommand {
	for _, command := range []nodeos.RebootCommand{nodeos.RebootPowerOff, nodeos.RebootKexec} {
		if command.String() == name {
			return command
		}
	}
	return nodeos.RebootRestart
}

func message(s string) string { return sanitize.Clip(s, maxMessage) }

// span converts a duration; nil for zero.
func span(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
