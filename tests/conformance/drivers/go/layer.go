package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/propagation"

	"headway.dev/go"
	"headway.dev/go/headwaypb"
)

// held is a lease's scope, open until it is told how to end.
type held struct {
	cancel  context.CancelFunc
	entered chan *headway.Lease
	end     chan *request
	done    chan struct{}
	lease   *headway.Lease
	err     error
}

func (d *driver) lease(ctx context.Context, asked *request) (object, error) {
	options := []headway.Option{}
	if asked.WaitMs != nil {
		options = append(options, headway.Wait(span(asked.WaitMs)))
	}
	if asked.LeaseMs != nil {
		options = append(options, headway.LeaseFor(span(asked.LeaseMs)))
	}
	scope, cancel := context.WithCancel(context.Background())
	h := &held{cancel: cancel, entered: make(chan *headway.Lease, 1), end: make(chan *request, 1), done: make(chan struct{})}
	var told object
	go func() {
		defer close(h.done)
		_, h.err = asked.client.Queue(asked.Queue).Lease(scope, func(work context.Context, lease *headway.Lease) ([]byte, error) {
			told = leaseJSON(work, lease)
			h.entered <- lease
			return ending(scope, h.end)
		}, options...)
	}()
	select {
	case h.lease = <-h.entered:
		d.keep(asked, h)
		return told, nil
	case <-h.done:
		return object{"empty": true}, h.err
	case <-ctx.Done():
		h.close()
		return nil, ctx.Err()
	}
}

// ending waits until a handler is told how to end, or is cancelled from outside.
func ending(ctx context.Context, end <-chan *request) ([]byte, error) {
	select {
	case how := <-end:
		if how.How == "fail" {
			return nil, &told{how.Reason}
		}
		return how.Result, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// told is the error of a handler that was told to fail.
type told struct{ reason string }

func (t *told) Error() string { return "told to fail: " + t.reason }

func leaseJSON(ctx context.Context, lease *headway.Lease) object {
	carrier := propagation.MapCarrier{}
	w3c.Inject(ctx, carrier)
	told := object{
		"message": messageJSON(lease.Message), "attempt": lease.Attempt, "ticket": strconv.FormatUint(lease.Ticket, 10),
		"traceparent": nil,
	}
	if carrier["traceparent"] != "" {
		told["traceparent"] = carrier["traceparent"]
	}
	return told
}

func (h *held) close() {
	h.cancel()
	<-h.done
}

func (d *driver) leaseEnd(_ context.Context, asked *request) (object, error) {
	h, is := d.take(asked).(*held)
	if !is {
		return nil, errDriver
	}
	if asked.How == "cancel" {
		h.close()
		return nil, nil
	}
	h.end <- asked
	<-h.done
	if asked.How == "fail" {
		return nil, nil
	}
	return nil, h.err
}

func (h *held) ack(ctx context.Context, asked *request) (object, error) {
	return nil, h.lease.Ack(ctx, asked.Result)
}

func (h *held) delay(ctx context.Context, asked *request) (object, error) {
	if asked.DelayMs == nil {
		return nil, h.lease.Backoff(ctx, asked.Reason)
	}
	return nil, h.lease.Delay(ctx, span(asked.DelayMs), asked.Reason)
}

func (h *held) progress(ctx context.Context, asked *request) (object, error) {
	return nil, h.lease.Progress(ctx, asked.Fraction, asked.Note)
}

func (h *held) isLost(context.Context, *request) (object, error) {
	return object{"lost": h.lease.IsLost()}, nil
}

// working is a worker loop, whose handlers wait until they are told how to end.
type working struct {
	cancel context.CancelFunc
	stop   context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	handling map[string]chan *request
	count    int
}

func (d *driver) work(_ context.Context, asked *request) (object, error) {
	scope, cancel := context.WithCancel(context.Background())
	ends, stop := context.WithCancel(context.Background())
	w := &working{cancel: cancel, stop: stop, done: make(chan struct{}), handling: map[string]chan *request{}}
	options := []headway.Option{headway.Concurrency(asked.Concurrency), headway.StopWhen(ends)}
	if asked.LeaseMs != nil {
		options = append(options, headway.LeaseFor(span(asked.LeaseMs)))
	}
	d.keep(asked, w)
	go func() {
		defer close(w.done)
		err := asked.client.Queue(asked.Queue).Work(scope, func(ctx context.Context, lease *headway.Lease) ([]byte, error) {
			end := make(chan *request, 1)
			w.mu.Lock()
			w.count++
			name := fmt.Sprintf("%s/%d", asked.Handle, w.count)
			w.handling[name] = end
			w.mu.Unlock()
			event := object{"event": "handling", "handle": asked.Handle, "lease": name}
			for key, value := range leaseJSON(ctx, lease) {
				event[key] = value
			}
			d.tell(event)
			result, err := ending(scope, end)
			if errors.Is(err, context.Canceled) {
				d.tell(object{"event": "cancelled", "handle": asked.Handle, "lease": name})
			}
			return result, err
		}, options...)
		ended := object{"event": "ended", "handle": asked.Handle, "error": nil}
		if err != nil && scope.Err() == nil {
			ended["error"] = errorJSON(err)
		}
		d.tell(ended)
	}()
	return nil, nil
}

func (w *working) finish(_ context.Context, asked *request) (object, error) {
	w.mu.Lock()
	end := w.handling[asked.Lease]
	delete(w.handling, asked.Lease)
	w.mu.Unlock()
	if end == nil {
		return nil, errDriver
	}
	end <- asked
	return nil, nil
}

func (w *working) stopSoon(context.Context, *request) (object, error) {
	w.stop()
	return nil, nil
}

func (w *working) close() {
	w.cancel()
	<-w.done
}

// watching is a watch of the layer.
type watching struct {
	cancel  context.CancelFunc
	pull    func() (*headwaypb.WatchPositionResponse, error, bool)
	stop    func()
	reading reading
}

func (d *driver) watch(_ context.Context, asked *request) (object, error) {
	options := []headway.Option{}
	if asked.Attended {
		options = append(options, headway.Attended())
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watching{cancel: cancel}
	w.pull, w.stop = iter.Pull2(asked.client.Queue(asked.Queue).Watch(ctx, asked.IDs, options...))
	w.reading.read = w.read
	d.keep(asked, w)
	return nil, nil
}

func (w *watching) read() (object, error) {
	came, err, more := w.pull()
	if err != nil || !more {
		return object{"end": true}, err
	}
	switch {
	case came.GetFinished() != nil:
		return object{"event": mixed(object{"kind": "finished"}, came.GetFinished())}, nil
	case came.GetLeased() != nil:
		return object{"event": mixed(object{"kind": "leased"}, came.GetLeased())}, nil
	case came.GetPosition().GetState() == headwaypb.State_STATE_DELAYED:
		return object{"event": mixed(object{"kind": "delayed"}, came.GetPosition())}, nil
	default:
		return object{"event": mixed(object{"kind": "position"}, came.GetPosition())}, nil
	}
}

func (w *watching) next(ctx context.Context, asked *request) (object, error) {
	return w.reading.next(ctx, span(asked.TimeoutMs))
}

func (w *watching) close() {
	w.cancel()
	w.reading.wait()
	w.stop()
}
