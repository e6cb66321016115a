package headway

import (
	"context"
	"crypto/rand"
	"log/slog"
	"time"

	"headway.dev/go/headwaypb"
)

const (
	idleWait      = 30 * time.Second // of one waiting Get; longer saves calls, shorter notices a lost service sooner
	finalAckTries = 5                // after a stop: how often a finished message's ack is tried before its lease lapses
)

// WorkOption changes how [Queue.Work] works: [Concurrency], [StopWhen], [Span], [Consumer].
type WorkOption interface{ work(*workOptions) }

type workOptions struct {
	leaseOptions
	concurrency int
	stop        <-chan struct{}
}

// Concurrency is how many messages are handled at a time; without it, one.
type Concurrency int

func (c Concurrency) work(o *workOptions) { o.concurrency = max(1, int(c)) }

type stopWhen <-chan struct{}

func (s stopWhen) work(o *workOptions) { o.stop = s }

// StopWhen lets Work finish what it holds, lease no more, and return, when the channel is closed; for example Done() of
// signal.NotifyContext.
func StopWhen(done <-chan struct{}) WorkOption { return stopWhen(done) }

// Work leases messages and runs handle with each; see [Handler] for what becomes of them. What a handler returns as an
// error is logged by package slog.
//
// It returns nil when the queue is closed and drained, or when it was stopped by [StopWhen]; ctx's error when ctx
// ended, which ends the handlers' contexts, too, and gives back what is not finished; or what no waiting mends, such as
// QUEUE_NOT_FOUND. While the service is away it waits until it is back: leases live on meanwhile, and what was finished
// is acked then.
func (q *Queue) Work(ctx context.Context, handle Handler, options ...WorkOption) error {
	o := workOptions{concurrency: 1, leaseOptions: leaseOptions{wait: idleWait}}
	for _, option := range options {
		option.work(&o)
	}
	idle, stop := context.WithCancel(ctx) // ends when nothing is to be leased any more
	defer stop()
	go func() {
		select {
		case <-o.stop:
			stop()
		case <-idle.Done():
		}
	}()
	ends := make(chan error)
	for range o.concurrency {
		go func() { ends <- q.slot(ctx, idle, handle, o.leaseOptions) }()
	}
	var failure error
	for range o.concurrency {
		if err := <-ends; err != nil && failure == nil {
			failure = err
			stop()
		}
	}
	if failure == nil {
		return ctx.Err()
	}
	return failure
}

// slot handles one message after the other until idle ends or the queue is drained.
func (q *Queue) slot(ctx, idle context.Context, handle Handler, o leaseOptions) error {
	attempt, failures := rand.Text(), 0
	for idle.Err() == nil {
		var lease *Lease
		err := within(idle, o.wait+q.client.callTimeout, func(ctx context.Context) (err error) {
			lease, err = q.get(ctx, attempt, &o, failures > 0)
			return err
		})
		switch {
		case err != nil && idle.Err() != nil:
			q.giveBackLost(ctx, attempt, &o, err)
		case Is(err, headwaypb.ErrorReason_ERROR_REASON_QUEUE_DRAINED):
			return nil
		case err != nil && !passing(err):
			return err
		case err != nil:
			failures++
			if failures == 1 {
				slog.WarnContext(ctx, "headway: trying again until it works", "queue", q.name, "error", err)
			}
			if !pause(idle, failures, err) {
				q.giveBackLost(ctx, attempt, &o, err)
			}
		default:
			failures = 0
			if lease != nil {
				attempt = rand.Text()
				q.handle(ctx, idle, handle, lease)
			}
		}
	}
	return nil
}

func (q *Queue) handle(ctx, idle context.Context, handle Handler, lease *Lease) {
	err := lease.run(ctx, handle, func(ctx context.Context, result []byte) error {
		for failures := 1; ; failures++ {
			err := lease.Ack(ctx, result)
			if !passing(err) || lease.IsSettled() || idle.Err() != nil && failures >= finalAckTries || !pause(ctx, failures, err) {
				return err
			}
		}
	})
	if err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "headway: a message failed", "queue", q.name, "id", lease.Message.GetId(), "error", err)
	}
}
