package main

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/protobuf/proto"

	"headway.dev/go"
	"headway.dev/go/headwayotel"
	"headway.dev/go/headwaypb"
)

// held is a lease's scope, open until it is told how to end.
type held struct {
	cancel context.CancelFunc
	end    chan *request
	done   chan struct{}
	lease  *headway.Lease
	err    error
}

func (d *driver) lease(ctx context.Context, asked *request) object {
	options := headway.Options{Wait: span(asked.WaitMs), Lease: span(asked.LeaseMs)}
	scope, cancel := context.WithCancel(context.Background())
	h, entered := &held{cancel: cancel, end: make(chan *request, 1), done: make(chan struct{})}, make(chan object, 1)
	go func() {
		defer close(h.done)
		handle := func(work context.Context, lease *headway.Lease) ([]byte, error) {
			h.lease = lease
			entered <- leaseJSON(work, lease)
			return ending(scope, h.end)
		}
		_, h.err = asked.client.Queue(asked.Queue).Lease(scope, headwayotel.Extract(handle), options)
	}()
	select {
	case told := <-entered:
		d.keep(asked, h)
		return told
	case <-h.done:
		return must(object{"empty": true}, h.err)
	case <-ctx.Done():
		h.close()
		panic(ctx.Err())
	}
}

// ending waits until a handler is told how to end, or is cancelled from outside.
func ending(ctx context.Context, end <-chan *request) ([]byte, error) {
	select {
	case how := <-end:
		if how.How == "fail" {
			return nil, errors.New("told to fail: " + how.Reason)
		}
		return how.Result, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func leaseJSON(ctx context.Context, lease *headway.Lease) object {
	carrier, told := propagation.MapCarrier{}, object{"traceparent": nil}
	if w3c.Inject(ctx, carrier); carrier["traceparent"] != "" {
		told["traceparent"] = carrier["traceparent"]
	}
	told["message"], told["attempt"] = messageJSON(lease.Message), lease.Attempt
	told["ticket"] = strconv.FormatUint(lease.Ticket, 10)
	return told
}

func (h *held) close() {
	h.cancel()
	<-h.done
}

func (d *driver) leaseEnd(_ context.Context, asked *request) object {
	h := d.take(asked).(*held)
	if asked.How == "cancel" {
		h.close()
		return nil
	}
	h.end <- asked
	if <-h.done; asked.How == "return" {
		check(h.err)
	}
	return nil
}

func (h *held) ack(ctx context.Context, asked *request) object {
	check(h.lease.Ack(ctx, asked.Result))
	return nil
}

func (h *held) delay(ctx context.Context, asked *request) object {
	if asked.DelayMs == nil {
		check(h.lease.Backoff(ctx, asked.Reason))
	} else {
		check(h.lease.Delay(ctx, span(asked.DelayMs), asked.Reason))
	}
	return nil
}

func (h *held) progress(ctx context.Context, asked *request) object {
	check(h.lease.Progress(ctx, asked.Fraction, asked.Note))
	return nil
}

func (h *held) isLost(context.Context, *request) object { return object{"lost": h.lease.IsLost()} }

// working is a worker loop, whose handlers wait until they are told how to end.
type working struct {
	cancel, stop context.CancelFunc
	done         chan struct{}
	handling     sync.Map // by the tokens of leases
}

func (d *driver) work(_ context.Context, asked *request) object {
	scope, cancel := context.WithCancel(context.Background())
	ends, stop := context.WithCancel(context.Background())
	w := &working{cancel: cancel, stop: stop, done: make(chan struct{})}
	options := headway.Options{Concurrency: asked.Concurrency, Stop: ends, Lease: span(asked.LeaseMs)}
	d.keep(asked, w)
	handle := func(ctx context.Context, lease *headway.Lease) ([]byte, error) {
		end, name := make(chan *request, 1), lease.GetLease()
		w.handling.Store(name, end)
		event := object{"event": "handling", "handle": asked.Handle, "lease": name}
		maps.Copy(event, leaseJSON(ctx, lease))
		d.event(event)
		result, err := ending(scope, end)
		if errors.Is(err, context.Canceled) {
			d.event(object{"event": "cancelled", "handle": asked.Handle, "lease": name})
		}
		return result, err
	}
	go func() {
		defer close(w.done)
		err := asked.client.Queue(asked.Queue).Work(scope, headwayotel.Extract(handle), options)
		ended := object{"event": "ended", "handle": asked.Handle, "error": nil}
		if err != nil && scope.Err() == nil {
			ended["error"] = errorJSON(err)
		}
		d.event(ended)
	}()
	return nil
}

func (w *working) finish(_ context.Context, asked *request) object {
	end, _ := w.handling.Load(asked.Lease)
	end.(chan *request) <- asked
	return nil
}

func (w *working) stopSoon(context.Context, *request) object {
	w.stop()
	return nil
}

func (w *working) close() {
	w.cancel()
	<-w.done
}

// watching is a watch of the layer.
type watching struct {
	cancel context.CancelFunc
	pull   func() (*headwaypb.WatchPositionResponse, error, bool)
	stop   func()
	reading
}

func (d *driver) watch(_ context.Context, asked *request) object {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watching{cancel: cancel}
	options := headway.Options{Attended: asked.Attended}
	w.pull, w.stop = iter.Pull2(asked.client.Queue(asked.Queue).Watch(ctx, asked.IDs, options))
	w.read = w.receive
	d.keep(asked, w)
	return nil
}

func (w *watching) receive() object {
	came, err, more := w.pull()
	if check(err); !more {
		return object{"end": true}
	}
	kind, told := "position", proto.Message(came.GetPosition())
	switch {
	case came.GetFinished() != nil:
		kind, told = "finished", came.GetFinished()
	case came.GetLeased() != nil:
		kind, told = "leased", came.GetLeased()
	case came.GetPosition().GetState() == headwaypb.State_STATE_DELAYED:
		kind = "delayed"
	}
	event := object{}
	check(json.Unmarshal(messageJSON(told), &event))
	event["kind"] = kind
	return object{"event": event}
}

func (w *watching) close() {
	w.cancel()
	w.wait()
	w.stop()
}
