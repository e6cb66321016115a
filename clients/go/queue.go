package headway

import (
	"context"
	"maps"
	"slices"
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
}

// Name is the queue's name.
func (q *Queue) Name() string { return q.name }

// Option changes what a function of [Queue] does; each says which ones take it, and the others take no notice.
type Option func(*options)

type options struct {
	put         headwaypb.PutRequest
	get         headwaypb.GetRequest
	concurrency int
	stop        context.Context
	attended    bool
}

func chosen(given []Option) *options {
	o := &options{concurrency: 1, stop: context.Background()}
	for _, option := range given {
		option(o)
	}
	return o
}

// Wait is for Put and Lease: how long to wait for room, or for a message; without it there is no waiting.
func Wait(wait time.Duration) Option {
	return func(o *options) { o.put.Wait, o.get.Wait = durationpb.New(wait), durationpb.New(wait) }
}

// Producer is for Put: the name under which others find a put that waits for room in the producer line.
func Producer(name string) Option { return func(o *options) { o.put.Producer = name } }

// OnDuplicate is for Put: what becomes of a message whose id is known. Default: it is refused.
func OnDuplicate(what headwaypb.OnDuplicate) Option {
	return func(o *options) { o.put.OnDuplicate = what }
}

// AllOrNothing is for Put: either every message is accepted in one step or none.
func AllOrNothing() Option { return func(o *options) { o.put.AllOrNothing = true } }

// LeaseFor is for Lease and Work: how long a lease lasts if nothing extends it. Default: the policy's.
func LeaseFor(span time.Duration) Option {
	return func(o *options) { o.get.Lease = durationpb.New(span) }
}

// Consumer is for Lease and Work: the consumer's name, for those who look at the queue.
func Consumer(name string) Option { return func(o *options) { o.get.Consumer = name } }

// Concurrency is for Work: how many messages are handled at a time. Default: 1.
func Concurrency(most int) Option { return func(o *options) { o.concurrency = max(1, most) } }

// StopWhen is for Work: when this context ends, for example one of signal.NotifyContext, it leases no more, finishes what
// it holds, and returns.
func StopWhen(ends context.Context) Option { return func(o *options) { o.stop = ends } }

// Attended is for Watch: messages that still wait when the watch ends, for whatever reason, are withdrawn.
func Attended() Option { return func(o *options) { o.attended = true } }

// In is for [headwaypb.Message.Available]: the message joins the line after this span.
func In(delay time.Duration) *headwaypb.Message_Delay {
	return &headwaypb.Message_Delay{Delay: durationpb.New(delay)}
}

// At is for [headwaypb.Message.Available]: the message joins the line at this instant.
func At(instant time.Time) *headwaypb.Message_NotBefore {
	return &headwaypb.Message_NotBefore{NotBefore: timestamppb.New(instant)}
}

// Put puts one message at the tail of the line and answers its id, ticket and position. See [Queue.PutAll].
func (q *Queue) Put(ctx context.Context, message *headwaypb.Message, options ...Option) (*headwaypb.PutResult, error) {
	results, err := q.PutAll(ctx, []*headwaypb.Message{message}, options...)
	if err != nil {
		return nil, err
	}
	return results[0], ErrorOf(results[0].Error)
}

// PutAll puts messages in order and answers one result for each, whose Error, if there is one, [ErrorOf] makes an error.
// If every message was refused for one and the same reason, that is the error of the call.
//
// It blocks for [Wait] and the call timeout at most. While the service is away it is made again if nothing happened,
// or, if every message carries an id, also when the answer was lost; what the first try accepted is then answered as
// deduplicated.
func (q *Queue) PutAll(ctx context.Context, messages []*headwaypb.Message, options ...Option) ([]*headwaypb.PutResult, error) {
	request := &chosen(options).put
	request.Queue, request.Messages = q.name, q.client.traced(ctx, messages)
	named := !slices.ContainsFunc(messages, func(message *headwaypb.Message) bool { return message.GetId() == "" })
	rejects, repeated := request.OnDuplicate <= headwaypb.OnDuplicate_ON_DUPLICATE_REJECT, false
	var response *headwaypb.PutResponse
	err := q.client.again(ctx, request.Wait.AsDuration(), named, func(ctx context.Context, wait time.Duration, again bool) (err error) {
		if request.Wait = durationpb.New(wait); again && rejects {
			request.OnDuplicate, repeated = headwaypb.OnDuplicate_ON_DUPLICATE_KEEP, true
		}
		response, err = q.client.Queues.Put(ctx, request)
		return err
	})
	for i, result := range response.GetResults() {
		if repeated && result.Deduplicated && result.BodyDiffers { // another message of this id was there before
			response.Results[i] = &headwaypb.PutResult{Id: result.Id, Error: &headwaypb.Status{
				Code: int32(codes.AlreadyExists), Reason: headwaypb.ErrorReason_ERROR_REASON_DUPLICATE_MESSAGE,
				Message: "another message with this id is known", Metadata: map[string]string{"queue": q.name, "id": result.Id},
			}}
		}
	}
	return response.GetResults(), err
}

// traced is the messages with the current trace context in their headers, as copies, but for those that carry one.
func (c *Client) traced(ctx context.Context, messages []*headwaypb.Message) []*headwaypb.Message {
	headers := map[string]string{}
	if c.tracing != nil {
		c.tracing.Inject(ctx, headers)
	}
	if len(headers) == 0 {
		return messages
	}
	messages = slices.Clone(messages)
	for i, message := range messages {
		if message.GetHeaders()["traceparent"] == "" {
			messages[i] = proto.Clone(message).(*headwaypb.Message)
			messages[i].Headers = maps.Clone(headers)
			maps.Copy(messages[i].Headers, message.GetHeaders())
		}
	}
	return messages
}
