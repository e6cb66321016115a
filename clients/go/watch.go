package headway

import (
	"context"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"headway.dev/go/headwaypb"
)

// Watch tells where messages are, each at once and then whenever that changes: Position (waiting or delayed), Leased
// with the worker's progress, and Finished, the last word on each. Then it ends. At most 10,000 ids.
//
// It asks anew when the stream breaks, for as long as the service is away, and never goes back in time. It ends with an
// error if ctx does, if the first answer does not come within the call timeout, or with what no waiting mends, such as
// QUEUE_NOT_FOUND. A message that is not known, or not remembered any more, is Finished with OUTCOME_UNSPECIFIED.
func (q *Queue) Watch(ctx context.Context, ids []string, options ...Option) iter.Seq2[*headwaypb.WatchPositionResponse, error] {
	return func(yield func(*headwaypb.WatchPositionResponse, error) bool) {
		w := &watch{left: map[string]*headwaypb.WatchPositionResponse{}}
		for _, id := range ids {
			w.left[id] = &headwaypb.WatchPositionResponse{}
		}
		first, cancel := context.WithTimeout(ctx, q.client.callTimeout)
		defer cancel()
		for failures := 1; len(w.left) > 0; failures++ {
			subject := &headwaypb.MessageIds{Ids: slices.Sorted(maps.Keys(w.left)), Attended: chosen(options).attended}
			before, patience := w.asOf, first
			err := w.once(ctx, q, subject, yield)
			if w.asOf != before {
				failures = 1
			}
			if w.asOf != nil {
				patience = ctx
			}
			switch {
			case err == nil:
				return
			case w.asOf != nil && (Is(err, headwaypb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND) || Is(err, headwaypb.ErrorReason_ERROR_REASON_QUEUE_DELETED)):
				w.deleted(yield)
				return
			case ctx.Err() != nil || !passing(err) || !pause(patience, failures, err):
				yield(nil, err)
				return
			}
		}
	}
}

// watch is what was said of messages over all of its streams.
type watch struct {
	left map[string]*headwaypb.WatchPositionResponse // what was said last of those that are not finished
	asOf *timestamppb.Timestamp                      // the last instant of which anything was said; nil: nothing was
}

// once passes on what one stream says until that is not wanted any more, and fails if the stream breaks before.
func (w *watch) once(
	ctx context.Context, q *Queue, subject *headwaypb.MessageIds, yield func(*headwaypb.WatchPositionResponse, error) bool,
) error {
	open, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(q.client.callTimeout, cancel) // an open stream may be silent for long, but not at first
	defer silence.Stop()
	request := &headwaypb.WatchPositionRequest{Queue: q.name, Subject: &headwaypb.WatchPositionRequest_Messages{Messages: subject}}
	stream, err := q.client.Queues.WatchPosition(open, request)
	for err == nil && len(w.left) > 0 {
		var answer *headwaypb.WatchPositionResponse
		answer, err = stream.Recv()
		silence.Stop()
		if err == nil && w.note(answer) && !yield(answer, nil) {
			return nil
		}
	}
	switch {
	case err == io.EOF:
		return ErrorOf(&headwaypb.Status{Code: int32(codes.Unavailable), Message: "the stream ended before its last message"})
	case open.Err() != nil && ctx.Err() == nil:
		return ErrorOf(&headwaypb.Status{Code: int32(codes.DeadlineExceeded), Message: "the stream said nothing in time"})
	}
	return err
}

// note tells whether an answer is news: about a message that is left, and not older than what was said of it before.
func (w *watch) note(answer *headwaypb.WatchPositionResponse) bool {
	id := answer.GetPosition().GetId() + answer.GetLeased().GetId() + answer.GetFinished().GetId() // one of them is there
	last, isLeft := w.left[id]
	switch {
	case !isLeft:
		return false
	case answer.GetFinished() != nil:
		delete(w.left, id)
	case answer.AsOf.AsTime().Before(last.AsOf.AsTime()):
		return false
	default:
		if before := last.GetPosition().GetPosition(); before > 0 && answer.GetPosition().GetPosition() > before {
			answer.GetPosition().MovedBack = true // a new stream does not know what the one before it said
		}
		w.left[id] = answer
	}
	if w.asOf == nil || answer.AsOf.AsTime().After(w.asOf.AsTime()) {
		w.asOf = answer.AsOf
	}
	return true
}

// deleted says the last word on messages whose queue was there and is no more.
func (w *watch) deleted(yield func(*headwaypb.WatchPositionResponse, error) bool) {
	for id := range w.left {
		end := &headwaypb.Finished{Id: id, Outcome: headwaypb.Outcome_OUTCOME_DELETED}
		if !yield(&headwaypb.WatchPositionResponse{AsOf: w.asOf, Event: &headwaypb.WatchPositionResponse_Finished{Finished: end}}, nil) {
			return
		}
	}
}
