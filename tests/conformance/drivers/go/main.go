// The conformance driver of Go: does what the lines on stdin ask, by the layer of clients/go.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go"
	"headway.dev/go/headwayotel"
	"headway.dev/go/headwaypb"
)

type object map[string]any

// request is a line of stdin: which fields are there its op says. Names are matched without regard to case.
type request struct {
	Op, Client, Handle, RPC, Queue, Traceparent, Tracestate, How, Reason, Note, Lease string
	ID, Target, Concurrency                                                           int
	Addresses, IDs                                                                    []string
	Fraction                                                                          float64
	Attended                                                                          bool
	Result                                                                            []byte
	Request                                                                           json.RawMessage
	Messages                                                                          []message
	Options                                                                           struct {
		CallTimeoutMs *float64 `json:"call_timeout_ms"`
	}
	TimeoutMs *float64 `json:"timeout_ms"`
	WaitMs    *float64 `json:"wait_ms"`
	LeaseMs   *float64 `json:"lease_ms"`
	DelayMs   *float64 `json:"delay_ms"`

	client *headway.Client // the one that is named, if it is connected
}

type message struct {
	ID      string
	Payload []byte
	Headers map[string]string
	DelayMs *float64 `json:"delay_ms"`
	TTLMs   *float64 `json:"ttl_ms"`
}

// handle is something that stays open over many requests.
type handle interface{ close() }

type driver struct {
	mu      sync.Mutex
	clients map[string]*headway.Client
	handles map[[2]string]handle
	cancels map[int]context.CancelFunc
	out     *json.Encoder
}

var (
	errDriver = errors.New("no such operation, client or handle")
	w3c       = propagation.TraceContext{}
)

var operations = map[string]func(*driver, context.Context, *request) (object, error){
	"hello":      (*driver).hello,
	"connect":    (*driver).connect,
	"disconnect": (*driver).disconnect,
	"cancel":     (*driver).cancel,
	"call":       (*driver).call,
	"put":        (*driver).put,

	"open":       (*driver).open,
	"send":       with((*stream).send),
	"half_close": with((*stream).halfClose),
	"next":       with((*stream).next),
	"close":      (*driver).close,

	"lease":          (*driver).lease,
	"lease_ack":      with((*held).ack),
	"lease_delay":    with((*held).delay),
	"lease_progress": with((*held).progress),
	"lease_is_lost":  with((*held).isLost),
	"lease_end":      (*driver).leaseEnd,

	"work":      (*driver).work,
	"finish":    with((*working).finish),
	"work_stop": with((*working).stopSoon),

	"watch":       (*driver).watch,
	"watch_next":  with((*watching).next),
	"watch_close": (*driver).close,
}

func main() {
	d := &driver{
		clients: map[string]*headway.Client{},
		handles: map[[2]string]handle{},
		cancels: map[int]context.CancelFunc{},
		out:     json.NewEncoder(os.Stdout),
	}
	d.out.SetEscapeHTML(false)
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		asked := &request{}
		if err := json.Unmarshal(line, asked); err != nil {
			d.tell(object{"id": asked.ID, "error": errorJSON(err)})
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		d.cancels[asked.ID], asked.client = cancel, d.clients[asked.Client]
		d.mu.Unlock()
		go d.answer(ctx, cancel, asked)
	}
	for name := range d.clients {
		_, _ = d.disconnect(context.Background(), &request{Client: name, client: d.clients[name]})
	}
}

func (d *driver) answer(ctx context.Context, cancel context.CancelFunc, asked *request) {
	defer cancel()
	operation, done, err := operations[asked.Op], object{}, errDriver
	if operation != nil && (asked.client != nil || slices.Contains([]string{"hello", "connect", "cancel"}, asked.Op)) {
		done, err = operation(d, ctx, asked)
	}
	if done == nil {
		done = object{}
	}
	answer := object{"id": asked.ID, "ok": done}
	if err != nil {
		answer = object{"id": asked.ID, "error": errorJSON(err)}
	}
	d.mu.Lock()
	delete(d.cancels, asked.ID)
	d.mu.Unlock()
	d.tell(answer)
}

func (d *driver) tell(line object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.out.Encode(line); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// with finds the handle that an operation is about.
func with[H handle](operation func(H, context.Context, *request) (object, error)) func(*driver, context.Context, *request) (object, error) {
	return func(d *driver, ctx context.Context, asked *request) (object, error) {
		d.mu.Lock()
		found, is := d.handles[[2]string{asked.Client, asked.Handle}].(H)
		d.mu.Unlock()
		if !is {
			return nil, errDriver
		}
		return operation(found, ctx, asked)
	}
}

func (d *driver) keep(asked *request, opened handle) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handles[[2]string{asked.Client, asked.Handle}] = opened
}

func (d *driver) take(asked *request) handle {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := [2]string{asked.Client, asked.Handle}
	taken := d.handles[key]
	delete(d.handles, key)
	return taken
}

func (d *driver) hello(context.Context, *request) (object, error) {
	features := []string{"call", "stream", "lease", "work", "watch", "trace"}
	return object{"language": "go", "version": headway.Version, "features": features}, nil
}

func (d *driver) connect(_ context.Context, asked *request) (object, error) {
	options := []headway.ConnectOption{headway.WithAddress(asked.Addresses...), headway.WithTracing(headwayotel.Tracing())}
	if asked.Options.CallTimeoutMs != nil {
		options = append(options, headway.WithCallTimeout(span(asked.Options.CallTimeoutMs)))
	}
	client, err := headway.Connect(options...)
	if err == nil {
		d.mu.Lock()
		d.clients[asked.Client] = client
		d.mu.Unlock()
	}
	return nil, err
}

func (d *driver) disconnect(_ context.Context, asked *request) (object, error) {
	open := []handle{}
	d.mu.Lock()
	for key, opened := range d.handles {
		if key[0] == asked.Client {
			open = append(open, opened)
			delete(d.handles, key)
		}
	}
	delete(d.clients, asked.Client)
	d.mu.Unlock()
	for _, opened := range open {
		opened.close()
	}
	return nil, asked.client.Close()
}

func (d *driver) cancel(_ context.Context, asked *request) (object, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cancel := d.cancels[asked.Target]; cancel != nil {
		cancel()
	}
	return nil, nil
}

func (d *driver) close(_ context.Context, asked *request) (object, error) {
	opened := d.take(asked)
	if opened == nil {
		return nil, errDriver
	}
	opened.close()
	return nil, nil
}

func (d *driver) put(ctx context.Context, asked *request) (object, error) {
	ctx = w3c.Extract(ctx, propagation.MapCarrier{"traceparent": asked.Traceparent, "tracestate": asked.Tracestate})
	messages := []*headwaypb.Message{}
	for _, each := range asked.Messages {
		put := &headwaypb.Message{Id: each.ID, Payload: each.Payload, Headers: each.Headers}
		if each.DelayMs != nil {
			put.Available = headway.In(span(each.DelayMs))
		}
		if each.TTLMs != nil {
			put.TimeToLive = durationpb.New(span(each.TTLMs))
		}
		messages = append(messages, put)
	}
	options := []headway.Option{}
	if asked.WaitMs != nil {
		options = append(options, headway.Wait(span(asked.WaitMs)))
	}
	results, err := asked.client.Queue(asked.Queue).PutAll(ctx, messages, options...)
	told := []json.RawMessage{}
	for _, result := range results {
		told = append(told, messageJSON(result))
	}
	return object{"results": told}, err
}

func span(ms *float64) time.Duration { return time.Duration(*ms * float64(time.Millisecond)) }

func messageJSON(message proto.Message) json.RawMessage {
	text, err := protojson.Marshal(message)
	if err != nil {
		panic(err)
	}
	return text
}

func errorJSON(err error) object {
	var failed *headway.Error
	if !errors.As(err, &failed) {
		failed = &headway.Error{Text: err.Error()}
	}
	told := object{
		"code": code.Code(failed.Code).String(), "reason": nil, "metadata": failed.Metadata, "retry_after_ms": nil,
		"outcome_unknown": failed.OutcomeUnknown(), "text": err.Error(),
	}
	violations := []object{}
	for _, each := range failed.Violations {
		violations = append(violations, object{"field": each.Field, "description": each.Description})
	}
	told["violations"] = violations
	if failed.Metadata == nil {
		told["metadata"] = object{}
	}
	if failed.ReasonName() != "" {
		told["reason"] = failed.ReasonName()
	}
	if failed.RetryAfter > 0 {
		told["retry_after_ms"] = float64(failed.RetryAfter) / float64(time.Millisecond)
	}
	switch {
	case failed.Code != codes.OK:
	case errors.Is(err, context.Canceled), errors.Is(err, io.EOF): // io.EOF: a send on a stream that ended; next tells why
		told["code"] = "CANCELLED"
	default:
		told["code"] = "DRIVER"
	}
	return told
}
