package headway

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go/headwaypb"
)

const (
	giveBackTimeout = 5 * time.Second // how long giving a message back may take; then its lease just lapses
	shortestExtend  = 100 * time.Millisecond
	maxReasonBytes  = 1024
)

// Handler works on one message. What it returns settles the lease, unless it did that itself:
//
//   - no error: acked; the result, at most 4096 bytes, is kept for those who watch the message
//   - an error: given to the queue's backoff, at the cost of an attempt; the error's text is kept as the reason
//   - anything but success after the caller's context ended: given back to the head of the line, now and for free
//
// ctx ends also when the lease is found lost; context.Cause tells. With [WithTracing] it holds the message's trace
// context. The lease is kept alive until it is settled, and must not be used when the handler has returned.
type Handler func(ctx context.Context, lease *Lease) (result []byte, err error)

// Lease is the right to work on one message until a deadline. It is safe for concurrent use.
type Lease struct {
	// Delivery is what was leased: the message, its attempt, its ticket, and the lease's token.
	*headwaypb.Delivery

	queue *Queue
	span  time.Duration
	isOld bool                    // given to an earlier try of the call that brought it: it may lapse sooner
	end   context.CancelCauseFunc // of the handler's context

	mu       sync.Mutex
	settling int // calls under way whose answer ends it: what Extend says meanwhile does not count
	settled  headwaypb.Settled
	loss     error
	fraction float64 // as last told
}

// LeaseOption changes how [Queue.Lease] leases: [Wait], [Span], [Consumer].
type LeaseOption interface{ lease(*leaseOptions) }

type leaseOptions struct {
	wait     time.Duration
	span     time.Duration // 0: as the policy says
	consumer string
}

// Span is how long a lease lasts if nothing extends it; without it the queue's policy says.
type Span time.Duration

func (s Span) lease(o *leaseOptions) { o.span = time.Duration(s) }
func (s Span) work(o *workOptions)   { o.span = time.Duration(s) }

// Consumer is the consumer's name, for those who look at the queue.
type Consumer string

func (c Consumer) lease(o *leaseOptions) { o.consumer = string(c) }
func (c Consumer) work(o *workOptions)   { o.consumer = string(c) }

// Lease leases one message, if there is one within [Wait], and runs handle with it; found tells whether there was. See
// [Handler] for what becomes of the message.
//
// The error is the handler's, or why nothing could be leased, or that the ack came too late to count: LEASE_STALE or
// LEASE_GONE.
func (q *Queue) Lease(ctx context.Context, handle Handler, options ...LeaseOption) (found bool, err error) {
	o := leaseOptions{}
	for _, option := range options {
		option.lease(&o)
	}
	attempt := rand.Text()
	var lease *Lease
	err = q.client.again(ctx, o.wait, true, func(ctx context.Context, wait time.Duration, again bool) (err error) {
		o.wait = wait
		lease, err = q.get(ctx, attempt, &o, again)
		return err
	})
	if err != nil {
		q.giveBackLost(ctx, attempt, &o, err)
		return false, err
	}
	if lease == nil {
		return false, nil
	}
	return true, lease.run(ctx, handle, lease.Ack)
}

// get leases one message, or answers nil. The same attempt again gives the same lease, as long as that lives.
func (q *Queue) get(ctx context.Context, attempt string, o *leaseOptions, again bool) (*Lease, error) {
	if o.span == 0 {
		span, err := q.leaseSpan(ctx)
		if err != nil {
			return nil, err
		}
		o.span = span
	}
	request := &headwaypb.GetRequest{Queue: q.name, MaxMessages: 1, Lease: durationpb.New(o.span), Consumer: o.consumer, AttemptId: attempt}
	if o.wait > 0 {
		request.Wait = durationpb.New(o.wait)
	}
	response, err := q.client.Queues.Get(ctx, request)
	if err != nil || len(response.Deliveries) == 0 {
		return nil, err
	}
	return &Lease{Delivery: response.Deliveries[0], queue: q, span: o.span, isOld: again, end: func(error) {}}, nil
}

// giveBackLost gives back for free what a Get leased whose answer never came, now that nobody is going to work on it.
func (q *Queue) giveBackLost(ctx context.Context, attempt string, o *leaseOptions, err error) {
	if failed, is := err.(*Error); !is || !failed.OutcomeUnknown() || o.span == 0 {
		return
	}
	o.wait = 0
	_ = within(context.WithoutCancel(ctx), giveBackTimeout, func(ctx context.Context) error {
		lease, err := q.get(ctx, attempt, o, true)
		if lease != nil {
			lease.giveBack(ctx, "")
		}
		return err
	})
}

// Ack settles the message for good; result, at most 4096 bytes, goes to those who watch it. If the lease has no say any
// more the error is LEASE_STALE or LEASE_GONE.
func (l *Lease) Ack(ctx context.Context, result []byte) error {
	return l.settle(ctx, false, func(ctx context.Context) ([]*headwaypb.SettleResult, error) {
		response, err := l.queue.client.Queues.Ack(ctx, &headwaypb.AckRequest{Queue: l.queue.name, Leases: []string{l.Delivery.Lease}, Result: result})
		return response.GetResults(), err
	})
}

// Release gives the message back to the head of the line, now and for free: it was not worked on.
func (l *Lease) Release(ctx context.Context) error {
	return l.delay(ctx, &headwaypb.DelayRequest{Available: &headwaypb.DelayRequest_Delay{Delay: durationpb.New(0)}, KeepAttempt: true})
}

// Backoff gives the message back for when the queue's backoff says, at the cost of an attempt; reason, cut to 1024
// bytes, is kept with it.
func (l *Lease) Backoff(ctx context.Context, reason string) error {
	return l.delay(ctx, &headwaypb.DelayRequest{Reason: reason})
}

// Delay gives the message back for after a delay, at the cost of an attempt; 0 is now, at the head of the line. See
// [Lease.Backoff] for reason.
func (l *Lease) Delay(ctx context.Context, delay time.Duration, reason string) error {
	return l.delay(ctx, &headwaypb.DelayRequest{Available: &headwaypb.DelayRequest_Delay{Delay: durationpb.New(delay)}, Reason: reason})
}

func (l *Lease) delay(ctx context.Context, request *headwaypb.DelayRequest) error {
	request.Queue, request.Leases = l.queue.name, []string{l.Delivery.Lease}
	request.Reason = strings.ToValidUTF8(request.Reason, "\uFFFD")
	if len(request.Reason) > maxReasonBytes {
		request.Reason = strings.ToValidUTF8(request.Reason[:maxReasonBytes], "") // a rune that was cut goes, too
	}
	return l.settle(ctx, true, func(ctx context.Context) ([]*headwaypb.SettleResult, error) {
		response, err := l.queue.client.Queues.Delay(ctx, request)
		return response.GetResults(), err
	})
}

// Progress tells watchers how far the work is, 0.0 to 1.0, with a note of at most 1024 bytes. Fails with LEASE_STALE or
// LEASE_GONE.
func (l *Lease) Progress(ctx context.Context, fraction float64, note string) error {
	return l.extend(ctx, &headwaypb.Progress{Fraction: fraction, Note: note})
}

// IsLost tells that the service said that somebody else has, or had, the message: what is done with it now has no say.
func (l *Lease) IsLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loss != nil
}

// IsSettled tells that it was acked or given back by this client, or found lost.
func (l *Lease) IsSettled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settled != headwaypb.Settled_SETTLED_UNSPECIFIED
}

// settle makes a call that ends the lease. If it ends the lease only once, a second try that finds it stale says that
// the first one most likely did it.
func (l *Lease) settle(ctx context.Context, once bool, call func(context.Context) ([]*headwaypb.SettleResult, error)) error {
	l.mu.Lock()
	l.settling++
	l.mu.Unlock()
	var results []*headwaypb.SettleResult
	repeated := false
	err := l.queue.client.again(ctx, 0, true, func(ctx context.Context, _ time.Duration, again bool) (err error) {
		repeated = again && once
		results, err = call(ctx)
		return err
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settling--
	if err != nil {
		return err
	}
	return l.book(results[0].Settled, repeated)
}

func (l *Lease) extend(ctx context.Context, progress *headwaypb.Progress) error {
	response, err := l.queue.client.Queues.Extend(ctx, &headwaypb.ExtendRequest{
		Queue: l.queue.name, Leases: []string{l.Delivery.Lease}, Lease: durationpb.New(l.span), Progress: progress,
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settling > 0 || l.settled != headwaypb.Settled_SETTLED_UNSPECIFIED {
		return nil // an Ack that overtook the Extend would make it look lost
	}
	return l.book(response.Results[0].Settled, false)
}

// book notes what the service said of the lease, and fails if it has no say any more; not so if it is forgiven that.
func (l *Lease) book(settled headwaypb.Settled, forgiven bool) error {
	if settled == headwaypb.Settled_SETTLED_EXTENDED {
		return nil
	}
	l.settled = settled
	lost := &Error{Metadata: map[string]string{"queue": l.queue.name}}
	switch settled {
	case headwaypb.Settled_SETTLED_STALE:
		lost.Code, lost.Reason = codes.FailedPrecondition, headwaypb.ErrorReason_ERROR_REASON_LEASE_STALE
		lost.Text = fmt.Sprintf("the lease of message %q is stale: somebody newer holds or held it", l.Message.GetId())
	case headwaypb.Settled_SETTLED_GONE:
		lost.Code, lost.Reason = codes.NotFound, headwaypb.ErrorReason_ERROR_REASON_LEASE_GONE
		lost.Text = fmt.Sprintf("the lease of message %q is gone, or its message or queue is", l.Message.GetId())
	default:
		return nil
	}
	if forgiven {
		return nil
	}
	l.loss = lost
	l.end(lost)
	return lost
}

// run has the message handled and settles it. ack is how: a worker is more patient than others.
func (l *Lease) run(ctx context.Context, handle Handler, ack func(context.Context, []byte) error) error {
	lasting := context.WithoutCancel(ctx)
	keeping, stop := context.WithCancel(lasting)
	defer stop()
	work := ctx
	if l.queue.client.tracing != nil {
		work = l.queue.client.tracing.Extract(ctx, l.Message.GetHeaders())
	}
	work, l.end = context.WithCancelCause(work)
	defer l.end(nil)
	go l.keepAlive(keeping)
	returned := false
	defer func() {
		if !returned {
			l.giveBack(lasting, "the handler panicked")
		}
	}()
	result, err := handle(work, l)
	returned = true
	if err == nil && !l.IsSettled() {
		err = ack(lasting, result)
		if failed, is := err.(*Error); !is || failed.Code != codes.InvalidArgument {
			return err
		} // the result is refused: that is the handler's failure
	}
	l.mu.Lock()
	settled, loss := l.settled, l.loss
	l.mu.Unlock()
	switch {
	case err == nil && loss != nil:
		return loss
	case err == nil || settled != headwaypb.Settled_SETTLED_UNSPECIFIED:
	case ctx.Err() != nil:
		l.giveBack(lasting, "")
	default:
		l.giveBack(lasting, err.Error())
	}
	return err
}

// giveBack gives the message back, to the queue's backoff with a reason, or, without one, now and for free. If the
// service does not answer, the lease lapses by itself.
func (l *Lease) giveBack(ctx context.Context, reason string) {
	err := within(ctx, giveBackTimeout, func(ctx context.Context) error {
		if reason == "" {
			return l.Release(ctx)
		}
		return l.Backoff(ctx, reason)
	})
	if err != nil {
		slog.WarnContext(ctx, "headway: could not give a message back", "queue", l.queue.name, "id", l.Message.GetId(), "error", err)
	}
}

// keepAlive extends the lease at a third of its span until ctx ends.
func (l *Lease) keepAlive(ctx context.Context) {
	third := l.span / 3
	next := third
	if l.isOld {
		next = 0
	}
	for failures := 0; sleep(ctx, next) && !l.IsSettled(); {
		next = third
		err := within(ctx, max(third, shortestExtend), func(ctx context.Context) error { return l.extend(ctx, nil) })
		if err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			next = min(third, backoffSpan(failures))
			slog.WarnContext(ctx, "headway: could not extend a lease", "queue", l.queue.name, "id", l.Message.GetId(), "error", err)
		}
	}
}
