package headway

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go/headwaypb"
)

const (
	idleWait        = 30 * time.Second // of one waiting Get; longer saves calls, shorter notices a lost service sooner
	giveBackTimeout = 5 * time.Second  // how long giving a message back may take; then its lease just lapses
	shortestExtend  = 100 * time.Millisecond
	maxReasonBytes  = 1024
)

// Handler works on one message. What it returns settles the lease, unless it did that itself:
//
//   - no error: acked; the result, at most 4096 bytes, is kept for those who watch the message
//   - an error: given to the queue's backoff, at the cost of an attempt; the error's text is kept as the reason
//   - an error after the caller's context ended: given back to the head of the line, now and for free
//
// ctx ends also when the lease is found lost; context.Cause tells. With [WithTracing] it holds the message's trace
// context. The lease is kept alive until it is settled, and must not be used when the handler has returned.
type Handler func(ctx context.Context, lease *Lease) (result []byte, err error)

// Lease is the right to work on one message until a deadline. It is safe for concurrent use.
type Lease struct {
	// Delivery is what was leased: the message, its attempt, its ticket, and the lease's token.
	*headwaypb.Delivery

	queue   *Queue
	asked   *durationpb.Duration    // how long it was asked to last; nil: as the policy says
	end     context.CancelCauseFunc // of the handler's context
	calling sync.Mutex              // one call at a time: an Ack that overtakes an Extend would make it look lost
	settled atomic.Bool
	loss    atomic.Pointer[Error]
}

// Lease leases one message, if there is one within [Wait], and runs handle with it; found tells whether there was. See
// [Handler] for what becomes of the message.
//
// The error is the handler's, or why nothing could be leased, or that the ack came too late to count: LEASE_STALE or
// LEASE_GONE.
func (q *Queue) Lease(ctx context.Context, handle Handler, options ...Option) (found bool, err error) {
	return q.lease(ctx, ctx, handle, chosen(options))
}

// lease waits for a message until idle ends, and works on it until ctx does.
func (q *Queue) lease(ctx, idle context.Context, handle Handler, o *options) (bool, error) {
	request := &headwaypb.GetRequest{Queue: q.name, MaxMessages: 1, Lease: o.get.Lease, Consumer: o.get.Consumer, AttemptId: rand.Text()}
	var lease *Lease
	get := func(ctx context.Context, wait time.Duration, _ bool) error {
		request.Wait = durationpb.New(wait)
		response, err := q.client.Queues.Get(ctx, request)
		if len(response.GetDeliveries()) > 0 {
			lease = &Lease{Delivery: response.Deliveries[0], queue: q, asked: o.get.Lease, end: func(error) {}}
		}
		return err
	}
	err := q.client.again(idle, o.get.Wait.AsDuration(), true, get)
	if failed, is := err.(*Error); is && failed.OutcomeUnknown() { // perhaps it was leased, and nobody is to work on it
		_ = within(context.WithoutCancel(ctx), giveBackTimeout, func(ctx context.Context) error { return get(ctx, 0, true) })
	}
	switch {
	case lease == nil:
		return false, err
	case err != nil || idle.Err() != nil:
		lease.giveBack(context.WithoutCancel(ctx), "")
		return false, err
	}
	return true, lease.run(ctx, handle)
}

// Ack settles the message for good; result, at most 4096 bytes, goes to those who watch it. If the lease has no say any
// more the error is LEASE_STALE or LEASE_GONE.
func (l *Lease) Ack(ctx context.Context, result []byte) error {
	request := &headwaypb.AckRequest{Queue: l.queue.name, Leases: []string{l.GetLease()}, Result: result}
	return settle(ctx, l, false, l.queue.client.Queues.Ack, request)
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
	request.Queue, request.Leases = l.queue.name, []string{l.GetLease()}
	request.Reason = strings.ToValidUTF8(request.Reason, "?")
	request.Reason = strings.ToValidUTF8(request.Reason[:min(len(request.Reason), maxReasonBytes)], "") // a rune that was cut goes, too
	return settle(ctx, l, true, l.queue.client.Queues.Delay, request)
}

// Progress tells watchers how far the work is, 0.0 to 1.0, with a note of at most 1024 bytes. Fails with LEASE_STALE or
// LEASE_GONE.
func (l *Lease) Progress(ctx context.Context, fraction float64, note string) error {
	return l.extend(ctx, &headwaypb.Progress{Fraction: fraction, Note: note})
}

// IsLost tells that the service said that somebody else has, or had, the message: what is done with it now has no say.
func (l *Lease) IsLost() bool { return l.loss.Load() != nil }

// settle makes a call that ends the lease. If it ends a lease only once, a second try that finds it stale says that the
// first one most likely did it.
func settle[Q any, R interface {
	GetResults() []*headwaypb.SettleResult
}](
	ctx context.Context, l *Lease, once bool, call func(context.Context, Q, ...grpc.CallOption) (R, error), request Q,
) error {
	l.calling.Lock()
	defer l.calling.Unlock()
	return l.queue.client.again(ctx, 0, true, func(ctx context.Context, _ time.Duration, again bool) error {
		response, err := call(ctx, request)
		if err != nil {
			return err
		}
		return l.book(response.GetResults()[0].Settled, again && once)
	})
}

func (l *Lease) extend(ctx context.Context, progress *headwaypb.Progress) error {
	l.calling.Lock()
	defer l.calling.Unlock()
	if l.settled.Load() {
		return nil
	}
	request := &headwaypb.ExtendRequest{Queue: l.queue.name, Leases: []string{l.GetLease()}, Lease: l.asked, Progress: progress}
	response, err := l.queue.client.Queues.Extend(ctx, request)
	if err != nil {
		return err
	}
	return l.book(response.Results[0].Settled, false)
}

// book notes what the service said of the lease, and fails if it has no say any more and is not forgiven that.
func (l *Lease) book(settled headwaypb.Settled, forgiven bool) error {
	l.settled.Store(settled != headwaypb.Settled_SETTLED_EXTENDED)
	lost := &headwaypb.Status{Metadata: map[string]string{"queue": l.queue.name}}
	switch settled {
	case headwaypb.Settled_SETTLED_STALE:
		lost.Code, lost.Reason = int32(codes.FailedPrecondition), headwaypb.ErrorReason_ERROR_REASON_LEASE_STALE
		lost.Message = fmt.Sprintf("somebody newer holds or held message %q", l.Message.GetId())
	case headwaypb.Settled_SETTLED_GONE:
		lost.Code, lost.Reason = int32(codes.NotFound), headwaypb.ErrorReason_ERROR_REASON_LEASE_GONE
		lost.Message = fmt.Sprintf("the lease of message %q is gone, or its message or queue is", l.Message.GetId())
	}
	if lost.Reason == 0 || forgiven {
		return nil
	}
	l.loss.Store(ErrorOf(lost).(*Error))
	l.end(l.loss.Load())
	return l.loss.Load()
}

// run has the message handled and settles it.
func (l *Lease) run(ctx context.Context, handle Handler) error {
	work, lasting := ctx, context.WithoutCancel(ctx)
	if l.queue.client.tracing != nil {
		work = l.queue.client.tracing.Extract(ctx, l.Message.GetHeaders())
	}
	work, l.end = context.WithCancelCause(work)
	defer l.end(nil)
	keeping, stop := context.WithCancel(lasting)
	defer stop()
	go l.keepAlive(keeping)
	returned := false
	defer func() {
		if !returned {
			l.giveBack(lasting, "the handler panicked")
		}
	}()
	result, err := handle(work, l)
	returned = true
	if err == nil && !l.settled.Load() {
		err = l.Ack(lasting, result)
	}
	switch {
	case err == nil && l.IsLost():
		return l.loss.Load()
	case err == nil || l.settled.Load():
	case ctx.Err() != nil:
		l.giveBack(lasting, "")
	default:
		l.giveBack(lasting, cmp.Or(err.Error(), "the handler failed"))
	}
	return err
}

// giveBack gives the message back, to the queue's backoff with a reason, or, without one, now and for free. If the
// service does not answer, the lease lapses by itself.
func (l *Lease) giveBack(ctx context.Context, reason string) {
	_ = within(ctx, giveBackTimeout, func(ctx context.Context) error {
		if reason == "" {
			return l.Release(ctx)
		}
		return l.Backoff(ctx, reason)
	})
}

// keepAlive extends the lease at a third of its time, and sooner after a failure, until ctx ends.
func (l *Lease) keepAlive(ctx context.Context) {
	// By the store's clock it was given when its message had waited so long; of a foreign message nobody may know.
	given := l.PutAt.AsTime().Add(l.Waited.AsDuration())
	third := max(l.LeaseExpiresAt.AsTime().Sub(given)/3, shortestExtend/3)
	if l.PutAt == nil {
		third = shortestExtend
	}
	limit := min(max(third, shortestExtend), l.queue.client.callTimeout)
	for next := third; sleep(ctx, next) && !l.settled.Load(); {
		next = third
		if within(ctx, limit, func(ctx context.Context) error { return l.extend(ctx, nil) }) != nil {
			next = third / 4
		}
	}
}

// Work leases messages and runs handle with each; see [Handler] for what becomes of them. What a handler returns as an
// error is logged by package slog.
//
// It returns nil when the queue is closed and drained, or when it was stopped by [StopWhen]; ctx's error when ctx
// ended, which ends the handlers' contexts, too, and gives back what is not finished; or what no waiting mends, such as
// QUEUE_NOT_FOUND. While the service is away it waits until it is back.
func (q *Queue) Work(ctx context.Context, handle Handler, options ...Option) error {
	o := chosen(options)
	o.get.Wait = durationpb.New(idleWait)
	idle, stop := context.WithCancel(ctx) // ends when nothing is to be leased any more
	defer stop()
	defer context.AfterFunc(o.stop, stop)()
	slots, idle := errgroup.WithContext(idle)
	for range o.concurrency {
		slots.Go(func() error { return q.slot(ctx, idle, handle, o) })
	}
	if err := slots.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// slot handles one message after the other until idle ends or the queue is drained.
func (q *Queue) slot(ctx, idle context.Context, handle Handler, o *options) error {
	for failures := 1; idle.Err() == nil; failures++ {
		found, err := q.lease(ctx, idle, handle, o)
		switch {
		case found || err == nil:
			if failures = 0; err != nil && ctx.Err() == nil {
				slog.WarnContext(ctx, "headway: a message failed", "queue", q.name, "error", err)
			}
		case idle.Err() != nil || Is(err, headwaypb.ErrorReason_ERROR_REASON_QUEUE_DRAINED):
			return nil
		case !passing(err):
			return err
		default:
			slog.WarnContext(ctx, "headway: nothing can be leased, trying again", "queue", q.name, "error", err)
			pause(idle, failures, err)
		}
	}
	return nil
}
