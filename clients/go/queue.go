package headway

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"headway.dev/go/headwaypb"
)

// Queue is a queue by name, safe for concurrent use. Make it with [Client.Queue].
type Queue struct {
	client *Client
	name   string

	mu   sync.Mutex
	span time.Duration // of the policy's leases; 0: not asked for yet
}

// Name is the queue's name.
func (q *Queue) Name() string { return q.name }

// PutOption changes how [Queue.Put] and [Queue.PutAll] put: [Wait], [Keep], [Replace], [AllOrNothing], [Producer].
type PutOption interface{ put(*headwaypb.PutRequest) }

type putOption func(*headwaypb.PutRequest)

func (o putOption) put(request *headwaypb.PutRequest) { o(request) }

// Wait is how long to wait for room or for a message; without it there is no waiting.
type Wait time.Duration

func (w Wait) put(request *headwaypb.PutRequest) { request.Wait = durationpb.New(time.Duration(w)) }
func (w Wait) lease(o *leaseOptions)             { o.wait = time.Duration(w) }

// Producer is the name under which a put that waits for room is found in line by others.
type Producer string

func (p Producer) put(request *headwaypb.PutRequest) { request.Producer = string(p) }

// Keep answers a message whose id is known with the one that is there, as deduplicated, instead of refusing it.
func Keep() PutOption { return onDuplicate(headwaypb.OnDuplicate_ON_DUPLICATE_KEEP) }

// Replace puts a message whose id is known in place of the one that is there.
func Replace() PutOption { return onDuplicate(headwaypb.OnDuplicate_ON_DUPLICATE_REPLACE) }

func onDuplicate(what headwaypb.OnDuplicate) PutOption {
	return putOption(func(request *headwaypb.PutRequest) { request.OnDuplicate = what })
}

// AllOrNothing accepts either every message in one step or none.
func AllOrNothing() PutOption {
	return putOption(func(request *headwaypb.PutRequest) { request.AllOrNothing = true })
}

// In is for [headwaypb.Message.Available]: the message joins the line after this span.
func In(delay time.Duration) *headwaypb.Message_Delay {
	return &headwaypb.Message_Delay{Delay: durationpb.New(delay)}
}

// At is for [headwaypb.Message.Available]: the message joins the line at this instant.
func At(instant time.Time) *headwaypb.Message_NotBefore {
	return &headwaypb.Message_NotBefore{NotBefore: timestamppb.New(instant)}
}

// Put puts one message at the tail of the line and answers its id, ticket and position. See [Queue.PutAll].
func (q *Queue) Put(ctx context.Context, message *headwaypb.Message, options ...PutOption) (*headwaypb.PutResult, error) {
	results, err := q.PutAll(ctx, []*headwaypb.Message{message}, options...)
	if err != nil {
		return nil, err
	}
	return results[0], ErrorOf(results[0].Error)
}

// PutAll puts messages in order and answers one result for each, whose Error, if there is one, [ErrorOf] makes an error.
// If every message was refused for one and the same reason, that is the error of the call.
//
// It blocks for [Wait] and the call timeout at most. It is made again if nothing happened, or, if every message carries
// an id, also when the answer was lost; what the first try accepted is then answered as deduplicated.
func (q *Queue) PutAll(ctx context.Context, messages []*headwaypb.Message, options ...PutOption) ([]*headwaypb.PutResult, error) {
	request := &headwaypb.PutRequest{Queue: q.name, Messages: q.client.traced(ctx, messages)}
	for _, option := range options {
		option.put(request)
	}
	named, repeated := true, false
	for _, message := range messages {
		named = named && message.GetId() != ""
	}
	rejects := request.OnDuplicate <= headwaypb.OnDuplicate_ON_DUPLICATE_REJECT
	var response *headwaypb.PutResponse
	err := q.client.again(ctx, request.Wait.AsDuration(), named, func(ctx context.Context, wait time.Duration, again bool) (err error) {
		if request.Wait != nil {
			request.Wait = durationpb.New(wait)
		}
		if repeated = again && rejects; repeated {
			request.OnDuplicate = headwaypb.OnDuplicate_ON_DUPLICATE_KEEP
		}
		response, err = q.client.Queues.Put(ctx, request)
		return err
	})
	for _, result := range response.GetResults() {
		if repeated && result.Deduplicated && result.BodyDiffers { // it was there before the first try
			result.Deduplicated, result.BodyDiffers, result.Ticket, result.Position = false, false, 0, 0
			result.Error = &headwaypb.Status{
				Code:     int32(codes.AlreadyExists),
				Message:  "another message with this id is known",
				Reason:   headwaypb.ErrorReason_ERROR_REASON_DUPLICATE_MESSAGE,
				Metadata: map[string]string{"queue": q.name, "id": result.Id},
			}
		}
	}
	return response.GetResults(), err
}

// traced is the messages with the current trace context in their headers, as copies, but for those that carry one.
func (c *Client) traced(ctx context.Context, messages []*headwaypb.Message) []*headwaypb.Message {
	context := map[string]string{}
	if c.tracing != nil {
		c.tracing.Inject(ctx, context)
	}
	if len(context) == 0 {
		return messages
	}
	traced := make([]*headwaypb.Message, len(messages))
	for i, message := range messages {
		if _, has := message.GetHeaders()["traceparent"]; has || message == nil {
			traced[i] = message
			continue
		}
		traced[i] = proto.Clone(message).(*headwaypb.Message)
		if traced[i].Headers == nil {
			traced[i].Headers = map[string]string{}
		}
		for key, value := range context {
			traced[i].Headers[key] = value
		}
	}
	return traced
}

// leaseSpan is how long the policy lets leases last, asked once.
func (q *Queue) leaseSpan(ctx context.Context) (time.Duration, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.span == 0 {
		told, err := q.client.Queues.Describe(ctx, &headwaypb.DescribeRequest{Queue: q.name})
		if err != nil {
			return 0, err
		}
		q.span = told.Queue.Policy.Lease.AsDuration()
	}
	return q.span, nil
}
