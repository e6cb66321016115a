package headway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"headway.dev/go/headwaypb"
)

// WatchOption changes how [Queue.Watch] watches: [Attended].
type WatchOption func(*headwaypb.MessageIds)

// Attended withdraws the messages that still wait when the watch ends, for whatever reason.
func Attended() WatchOption {
	return func(subject *headwaypb.MessageIds) { subject.Attended = true }
}

// Watch tells where messages are, each at once and then whenever that changes: Position (waiting or delayed), Leased
// with the worker's progress, and Finished, the last word on each. Then it ends. At most 10,000 ids.
//
// It asks anew when the stream breaks, for as long as the service is away, and never goes back in time. It ends with an
// error if ctx does, if the first answer does not come within the call timeout, or with what no waiting mends, such as
// QUEUE_NOT_FOUND. A message that is not known, or not remembered any more, is Finished with OUTCOME_UNSPECIFIED.
func (q *Queue) Watch(ctx context.Context, ids []string, options ...WatchOption) iter.Seq2[*headwaypb.WatchPositionResponse, error] {
	return func(yield func(*headwaypb.WatchPositionResponse, error) bool) {
		subject := &headwaypb.MessageIds{}
		for _, option := range options {
			option(subject)
		}
		told := &toldOf{left: map[string]lastTold{}}
		for _, id := range ids {
			told.left[id] = lastTold{}
		}
		giveUp, cancel := context.WithTimeout(ctx, q.client.callTimeout)
		defer cancel()
		for failures := 1; len(told.left) > 0; failures++ {
			subject.Ids = slices.Sorted(maps.Keys(told.left))
			wanted, before := true, told.asOf
			err := q.watchOnce(ctx, subject, func(answer *headwaypb.WatchPositionResponse) bool {
				if told.note(answer) {
					wanted = yield(answer, nil)
				}
				return wanted && len(told.left) > 0
			})
			if err == nil {
				return
			}
			if told.asOf != before {
				failures = 1
			}
			patience := ctx
			if told.asOf == nil {
				patience = giveUp
			}
			switch {
			case told.asOf != nil && Is(err, headwaypb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND),
				told.asOf != nil && Is(err, headwaypb.ErrorReason_ERROR_REASON_QUEUE_DELETED):
				for _, id := range subject.Ids { // the queue was there and is no more
					if _, isLeft := told.left[id]; isLeft && !yield(deleted(id, told.asOf), nil) {
						return
					}
				}
				return
			case ctx.Err() != nil, !passing(err), !pause(patience, failures, err):
				yield(nil, err)
				return
			}
		}
	}
}

// WaitFor watches one message to its end: its outcome, its result if it is done, why if it is dead. It fails with
// MESSAGE_NOT_FOUND if the message is not known or not remembered any more, and otherwise as [Queue.Watch] does.
func (q *Queue) WaitFor(ctx context.Context, id string, options ...WatchOption) (*headwaypb.Finished, error) {
	for answer, err := range q.Watch(ctx, []string{id}, options...) {
		if err != nil {
			return nil, err
		}
		if end := answer.GetFinished(); end != nil && end.Outcome != headwaypb.Outcome_OUTCOME_UNSPECIFIED {
			return end, nil
		}
	}
	return nil, &Error{
		Code:     codes.NotFound,
		Reason:   headwaypb.ErrorReason_ERROR_REASON_MESSAGE_NOT_FOUND,
		Text:     fmt.Sprintf("no message %q is known", id),
		Metadata: map[string]string{"queue": q.name, "id": id},
	}
}

// watchOnce passes on what one stream says until it is not wanted any more, and fails if the stream breaks before.
func (q *Queue) watchOnce(
	ctx context.Context, subject *headwaypb.MessageIds, pass func(*headwaypb.WatchPositionResponse) bool,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(q.client.callTimeout, cancel) // an open stream may be silent for long, but not at first
	defer silence.Stop()
	stream, err := q.client.Queues.WatchPosition(ctx, &headwaypb.WatchPositionRequest{
		Queue: q.name, Subject: &headwaypb.WatchPositionRequest_Messages{Messages: subject},
	})
	for err == nil {
		var answer *headwaypb.WatchPositionResponse
		answer, err = stream.Recv()
		silence.Stop()
		if err == nil && !pass(answer) {
			return nil
		}
	}
	if errors.Is(err, io.EOF) {
		return &Error{Code: codes.Unavailable, Text: "the stream ended before its last message"}
	}
	return err
}

// toldOf is what was said of the messages that one watch is about, over all of its streams.
type toldOf struct {
	left map[string]lastTold
	asOf *timestamppb.Timestamp // the last instant that was told of anything; nil: nothing was
}

type lastTold struct {
	asOf     time.Time
	position uint64 // 0: it did not wait
}

// note tells whether an answer is news: not older than what was said before, and about a message that is left.
func (t *toldOf) note(answer *headwaypb.WatchPositionResponse) bool {
	end, place := answer.GetFinished(), answer.GetPosition()
	id := end.GetId() + place.GetId() + answer.GetLeased().GetId() // at most one of them is there
	last, isLeft := t.left[id]
	if !isLeft || end == nil && answer.AsOf.AsTime().Before(last.asOf) {
		return false
	}
	if end == nil {
		if last.position > 0 && place.GetPosition() > last.position {
			place.MovedBack = true // a new stream does not know what the one before said
		}
		t.left[id] = lastTold{answer.AsOf.AsTime(), place.GetPosition()}
	} else {
		delete(t.left, id)
	}
	if t.asOf == nil || answer.AsOf.AsTime().After(t.asOf.AsTime()) {
		t.asOf = answer.AsOf
	}
	return true
}

func deleted(id string, asOf *timestamppb.Timestamp) *headwaypb.WatchPositionResponse {
	end := &headwaypb.Finished{Id: id, Outcome: headwaypb.Outcome_OUTCOME_DELETED}
	return &headwaypb.WatchPositionResponse{AsOf: asOf, Event: &headwaypb.WatchPositionResponse_Finished{Finished: end}}
}
