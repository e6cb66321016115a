package headway

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
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

// Queue is a queue by name, safe for concurrent use. Make it with [Client.Queue].
type Queue struct {
	client *Client
	name   string
}

// Options change what functions of [Queue] do; their zero values are what one mostly wants.
type Options struct {
	// Wait is for Lease: how long to wait for a message.
	Wait time.Duration
	// Lease is for Lease and Work: how long a lease lasts if nothing extends it. 0: as the queue's policy says.
	Lease time.Duration
	// Concurrency is for Work: how many messages are handled at a time. 0 or less: one.
	Concurrency int
	// Stop is for Work: when this context ends, for example one of signal.NotifyContext, it leases no more, finishes
	// what it holds, gives back what was just sent, which takes 5 s at most, and returns.
	Stop context.Context
	// Attended is for Watch: messages that still wait when the watch ends, for whatever reason, are withdrawn.
	Attended bool

	idle     context.Context // of Work: when it ends, nothing is to be leased any more
	name     string          // of Work's Get, until one is answered
	failures int             // how often that was not
}

// Handler works on one message. What it returns settles the lease, unless it did that itself:
//
//   - no error: acked; the result, at most 4096 bytes, is kept for those who watch the message
//   - an error: given to the queue's backoff, at the cost of an attempt; the error's text is kept as the reason
//   - an error after the caller's context ended: given back to the head of the line, now and for free
//
// ctx ends also when the lease is found lost; context.Cause tells. The lease is kept alive until it is settled, and
// must not be used when the handler has returned. If the handler panics, or the service does not answer, it lapses.
type Handler func(ctx context.Context, lease *Lease) (result []byte, err error)

// Lease is the right to work on one message until a deadline. It is safe for concurrent use.
type Lease struct {
	// Delivery is what was leased: the message, its attempt, its ticket, and the lease's token.
	*headwaypb.Delivery

	queue     *Queue
	asked     *durationpb.Duration    // how long it was asked to last; nil: as the policy says
	end       context.CancelCauseFunc // of the handler's context
	settling  sync.Mutex              // locked by calls that may settle it, which go one after the other
	isSettled atomic.Bool             // or is found lost
	loss      atomic.Value            // an *Error, once the service said that the lease has no say any more
}

// Lease leases one message, if there is one within the wait, and runs handle with it; found tells whether there was.
// See [Handler] for what becomes of the message.
//
// The error is the handler's, or why nothing could be leased, or that the ack came too late to count: LEASE_STALE or
// LEASE_GONE. If ctx ends while it waits, what was leased in that moment is given back, which takes 5 s at most; if it
// ends later, settling takes no longer than the call timeout once the handler has returned.
func (q *Queue) Lease(ctx context.Context, handle Handler, o Options) (found bool, err error) {
	tries, get := o.failures, &headwaypb.GetRequest{Queue: q.name, MaxMessages: 1, AttemptId: cmp.Or(o.name, rand.Text())}
	if o.idle, get.Wait = cmp.Or(o.idle, ctx), durationpb.New(o.Wait); o.Lease != 0 {
		get.Lease = durationpb.New(o.Lease)
	}
	response, err := q.client.Queues.Get(o.idle, get, grpc.OnFinish(func(error) { tries++ }))
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	if err != nil && o.idle.Err() != nil { // it may have been answered in that moment: what it leased goes back
		lasting, stop = context.WithTimeout(lasting, 5*time.Second)
		ctx, get.Wait, handle = o.idle, nil, func(context.Context, *Lease) ([]byte, error) { return nil, err }
		response, _ = q.client.Queues.Get(lasting, get)
	}
	defer stop()
	if len(response.GetDeliveries()) == 0 {
		return false, err
	}
	work, end := context.WithCancelCause(ctx)
	defer end(nil)
	l := &Lease{Delivery: response.Deliveries[0], queue: q, asked: get.Lease, end: end}
	go l.keepAlive(lasting, tries)
	result, err := handle(work, l)
	defer context.AfterFunc(ctx, func() { time.AfterFunc(q.client.callTimeout, stop) })() // cut off, it takes no longer
	if err == nil {
		err = l.Ack(lasting, result)
	}
	if ctx.Err() != nil {
		_ = l.Release(lasting)
	} else if err != nil {
		_ = l.Backoff(lasting, fmt.Sprintf("%.256s", strings.ToValidUTF8(err.Error(), "?"))) // 1024 bytes at most
	}
	return true, err
}

// Work leases messages and runs handle with each; see [Handler] for what becomes of them.
//
// It returns nil when the queue is closed and drained, or when it was stopped by [Options].Stop; ctx's error when ctx
// ended, which ends the handlers' contexts, too, and gives back what is not finished; or what no waiting mends, such as
// QUEUE_NOT_FOUND. While the service is away it waits until it is back.
func (q *Queue) Work(ctx context.Context, handle Handler, o Options) error {
	idle, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(cmp.Or(o.Stop, ctx), stop)()
	slots, idle := errgroup.WithContext(idle)
	o.Wait, o.idle = 30*time.Second, idle // longer saves calls, shorter notices a lost service sooner
	for range max(1, o.Concurrency) {
		slots.Go(func() error { // one message after the other
			for o := o; idle.Err() == nil || o.failures > 0; {
				o.name = cmp.Or(o.name, rand.Text()) // one that was not answered may have leased something
				found, err := q.Lease(ctx, handle, o)
				if o.failures++; found || err == nil || idle.Err() != nil { // stopped, it gave back what it leased
					o.name, o.failures = "", 0
				} else if Is(err, headwaypb.ErrorReason_ERROR_REASON_QUEUE_DRAINED) {
					return nil
				} else if !q.client.pause(idle, o.failures, err) && idle.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	return cmp.Or(slots.Wait(), ctx.Err())
}

// Watch tells where messages are, each at once and then whenever that changes: Position (waiting or delayed), Leased
// with the worker's progress, and Finished, the last word on each. Then it ends. At most 10,000 ids.
//
// It asks anew when the stream breaks, or brings no answer within the call timeout, for as long as the service is away,
// and then goes back in time only where the store's clock did; a stream that was served until its token expired is
// opened once more, with the token of now. It ends with an error if ctx does, or with what no waiting mends, such as
// QUEUE_NOT_FOUND. A message that is not known, or not remembered any more, is Finished with OUTCOME_UNSPECIFIED.
func (q *Queue) Watch(ctx context.Context, ids []string, o Options) iter.Seq2[*headwaypb.WatchPositionResponse, error] {
	return func(yield func(*headwaypb.WatchPositionResponse, error) bool) {
		left := map[string]time.Time{} // of those that are not finished, when the last thing was said
		for _, id := range ids {
			left[id] = time.Time{}
		}
		for failures, before := 1, maps.Clone(left); len(left) > 0; failures, before = failures+1, maps.Clone(left) {
			messages := &headwaypb.MessageIds{Ids: slices.Sorted(maps.Keys(left)), Attended: o.Attended}
			subject := &headwaypb.WatchPositionRequest_Messages{Messages: messages}
			open, end := context.WithCancel(ctx)
			defer end()                                           // of the last stream; others have ended before
			patience := time.AfterFunc(q.client.callTimeout, end) // the first answer comes at once
			stream, err := q.client.Queues.WatchPosition(open, &headwaypb.WatchPositionRequest{Queue: q.name, Subject: subject})
			for err == nil && len(left) > 0 {
				var answer *headwaypb.WatchPositionResponse
				answer, err = stream.Recv()
				if patience.Stop(); err == nil && news(left, before, answer) {
					if failures = 0; !yield(answer, nil) {
						return
					}
				}
			}
			end()
			if err == io.EOF { // before the last word on each
				err = &Error{Code: codes.Unavailable, Text: "the stream ended early"}
			}
			if err = Typed(err); err != nil && !q.client.pause(ctx, failures, err) {
				yield(nil, err)
				return
			}
		}
	}
}

// news tells whether an answer is about a message that is left, and not overtaken by what was said of it before this
// stream; then it is noted. What is older by more than a look takes was not: the store's clock went back.
func news(left, before map[string]time.Time, answer *headwaypb.WatchPositionResponse) bool {
	// one of them is there
	id := answer.GetPosition().GetId() + answer.GetLeased().GetId() + answer.GetFinished().GetId()
	_, isNews := left[id]
	if age := before[id].Sub(answer.AsOf.AsTime()); answer.GetFinished() != nil {
		delete(left, id)
	} else if isNews = isNews && (age <= 0 || age > 2*time.Second); isNews {
		left[id] = answer.AsOf.AsTime()
	}
	return isNews
}

// Ack settles the message for good; result, at most 4096 bytes, goes to those who watch it. While the service is away it
// is tried for as long as the lease may live, or until ctx ends. If the lease has no say any more the error is
// LEASE_STALE, also of a message that is dead, or LEASE_GONE. What is settled is not settled again: later calls do
// nothing.
func (l *Lease) Ack(ctx context.Context, result []byte) error {
	ctx, cancel := context.WithTimeout(ctx, max(l.span(), l.queue.client.callTimeout))
	defer cancel()
	request := &headwaypb.AckRequest{Queue: l.queue.name, Leases: []string{l.GetLease()}, Result: result}
	return l.settle(&l.settling, func() (settled, error) { return l.queue.client.Queues.Ack(ctx, request) })
}

// Release gives the message back to the head of the line, now and for free: it was not worked on.
func (l *Lease) Release(ctx context.Context) error {
	return l.delay(ctx, &headwaypb.DelayRequest{Available: &after{Delay: durationpb.New(0)}, KeepAttempt: true})
}

// Backoff gives the message back for when the queue's backoff says, at the cost of an attempt; reason, at most 1024
// bytes, is kept with it.
func (l *Lease) Backoff(ctx context.Context, reason string) error {
	return l.delay(ctx, &headwaypb.DelayRequest{Reason: reason})
}

// Delay gives the message back for after a delay, at the cost of an attempt; 0 is now, at the head of the line. See
// [Lease.Backoff] for reason.
func (l *Lease) Delay(ctx context.Context, delay time.Duration, reason string) error {
	return l.delay(ctx, &headwaypb.DelayRequest{Available: &after{Delay: durationpb.New(delay)}, Reason: reason})
}

type after = headwaypb.DelayRequest_Delay

func (l *Lease) delay(ctx context.Context, request *headwaypb.DelayRequest) error {
	request.Queue, request.Leases = l.queue.name, []string{l.GetLease()}
	return l.settle(&l.settling, func() (settled, error) { return l.queue.client.Queues.Delay(ctx, request) })
}

// Progress tells watchers how far the work is, 0.0 to 1.0, with a note of at most 1024 bytes. Fails with LEASE_STALE or
// LEASE_GONE.
func (l *Lease) Progress(ctx context.Context, fraction float64, note string) error {
	return l.extend(ctx, &headwaypb.ExtendRequest{Progress: &headwaypb.Progress{Fraction: fraction, Note: note}})
}

// extend goes beside all other calls, whose answers may not come: with a lock of its own.
func (l *Lease) extend(ctx context.Context, request *headwaypb.ExtendRequest) error {
	request.Queue, request.Leases, request.Lease = l.queue.name, []string{l.GetLease()}, l.asked
	return l.settle(new(sync.Mutex), func() (settled, error) { return l.queue.client.Queues.Extend(ctx, request) })
}

// IsLost tells that the service said that somebody else has, or had, the message, or to an Ack that it is dead: what is
// done with it now has no say.
func (l *Lease) IsLost() bool { return l.loss.Load() != nil }

type results = []*headwaypb.SettleResult
type settled interface{ GetResults() results }

// settle makes a call about a lease that is not settled, and notes what the service says of it; what it says to an
// Extend once nothing settles the lease any more, for an Ack that overtakes one makes it look lost.
func (l *Lease) settle(lock sync.Locker, call func() (settled, error)) error {
	lock.Lock()
	defer lock.Unlock()
	if l.isSettled.Load() {
		lost, _ := l.loss.Load().(error)
		return lost
	}
	response, err := call()
	if err != nil || response.GetResults()[0].Settled == headwaypb.Settled_SETTLED_EXTENDED {
		return err
	} else if lock != &l.settling {
		return l.settle(&l.settling, func() (settled, error) { return response, nil })
	}
	said := response.GetResults()[0].Settled
	defer l.isSettled.Store(true) // once the loss is noted
	lost := &Error{Code: codes.FailedPrecondition, Text: "too late", Metadata: map[string]string{"queue": l.queue.name}}
	lost.Reason = headwaypb.ErrorReason_ERROR_REASON_LEASE_STALE
	if _, isAck := response.(*headwaypb.AckResponse); said == headwaypb.Settled_SETTLED_GONE {
		lost.Code, lost.Reason = codes.NotFound, headwaypb.ErrorReason_ERROR_REASON_LEASE_GONE
	} else if said == headwaypb.Settled_SETTLED_DEAD && isAck { // to a Delay it is how that ended
		lost.Text += ": the message is dead"
	} else if said != headwaypb.Settled_SETTLED_STALE {
		return nil
	}
	l.loss.Store(lost)
	l.end(lost)
	return lost
}

// span is how long the lease lasts if nothing extends it; 0 if nobody knows.
func (l *Lease) span() time.Duration {
	if l.asked == nil && l.PutAt != nil { // else it is a foreign message, and nobody may know when it was put
		// By the store's clock it was given when its message had waited so long.
		return l.LeaseExpiresAt.AsTime().Sub(l.PutAt.AsTime().Add(l.Waited.AsDuration()))
	}
	return l.asked.AsDuration()
}

// keepAlive extends the lease at a third of its time, until ctx ends. An answer that does not come leaves time for
// another try before the lease lapses. One that took several tries may have been
// given to the first, and lapse soon: it is extended at once.
func (l *Lease) keepAlive(ctx context.Context, tries int) {
	third := max(l.span()/3, 30*time.Millisecond)
	for turn := time.Now().Add(third * time.Duration(2-tries)); sleep(ctx, turn); {
		turn = time.Now().Add(third)
		limited, cancel := context.WithTimeout(ctx, max(min(third, l.queue.client.callTimeout)/2, 100*time.Millisecond))
		_ = l.extend(limited, &headwaypb.ExtendRequest{})
		cancel()
	}
}
