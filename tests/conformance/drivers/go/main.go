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

// request is a line of stdin: which fields are there its op says.
type request struct {
	ID          int             `json:"id"`
	Op          string          `json:"op"`
	Client      string          `json:"client"`
	Handle      string          `json:"handle"`
	Addresses   []string        `json:"addresses"`
	Options     options         `json:"options"`
	Target      int             `json:"target"`
	RPC         string          `json:"rpc"`
	Request     json.RawMessage `json:"request"`
	TimeoutMs   *float64        `json:"timeout_ms"`
	Queue       string          `json:"queue"`
	Messages    []message       `json:"messages"`
	WaitMs      *float64        `json:"wait_ms"`
	LeaseMs     *float64        `json:"lease_ms"`
	DelayMs     *float64        `json:"delay_ms"`
	Traceparent string          `json:"traceparent"`
	Tracestate  string          `json:"tracestate"`
	How         string          `json:"how"`
	Result      []byte          `json:"result"`
	Reason      string          `json:"reason"`
	Fraction    float64         `json:"fraction"`
	Note        string          `json:"note"`
	Concurrency int             `json:"concurrency"`
	Lease       string          `json:"lease"`
	IDs         []string        `json:"ids"`
	Attended    bool            `json:"attended"`
}

type options struct {
	CallTimeoutMs *float64 `json:"call_timeout_ms"`
}

type message struct {
	Payload []byte            `json:"payload"`
	ID      string            `json:"id"`
	Headers map[string]string `json:"headers"`
	DelayMs *float64          `json:"delay_ms"`
	TTLMs   *float64          `json:"ttl_ms"`
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
	errDriver = errors.New("no such client or handle")
	w3c       = propagation.TraceContext{}
	asJSON    = protojson.MarshalOptions{}
	fromJSON  = protojson.UnmarshalOptions{}
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
		d.cancels[asked.ID] = cancel
		d.mu.Unlock()
		go d.answer(ctx, cancel, asked)
	}
	for name := range d.clients {
		_, _ = d.disconnect(context.Background(), &request{Client: name})
	}
}

func (d *driver) answer(ctx context.Context, cancel context.CancelFunc, asked *request) {
	defer cancel()
	operation, known := operations[asked.Op]
	done, err := object{}, fmt.Errorf("no such op: %q", asked.Op)
	if known {
		done, err = operation(d, ctx, asked)
	}
	d.mu.Lock()
	delete(d.cancels, asked.ID)
	d.mu.Unlock()
	switch {
	case err != nil:
		d.tell(object{"id": asked.ID, "error": errorJSON(err)})
	case done == nil:
		d.tell(object{"id": asked.ID, "ok": object{}})
	default:
		d.tell(object{"id": asked.ID, "ok": done})
	}
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

func (d *driver) client(asked *request) (*headway.Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if client := d.clients[asked.Client]; client != nil {
		return client, nil
	}
	return nil, errDriver
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
	d.mu.Lock()
	client := d.clients[asked.Client]
	delete(d.clients, asked.Client)
	open := []handle{}
	for key, opened := range d.handles {
		if key[0] == asked.Client {
			open = append(open, opened)
			delete(d.handles, key)
		}
	}
	d.mu.Unlock()
	if client == nil {
		return nil, errDriver
	}
	for _, opened := range open {
		opened.close()
	}
	return nil, client.Close()
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
	client, err := d.client(asked)
	if err != nil {
		return nil, err
	}
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
	results, err := client.Queue(asked.Queue).PutAll(ctx, messages, options...)
	told := []json.RawMessage{}
	for _, result := range results {
		told = append(told, messageJSON(result))
	}
	return object{"results": told}, err
}

func span(ms *float64) time.Duration { return time.Duration(*ms * float64(time.Millisecond)) }

func messageJSON(message proto.Message) json.RawMessage {
	text, err := asJSON.Marshal(message)
	if err != nil {
		panic(err)
	}
	return text
}

func errorJSON(err error) object {
	told := object{
		"code": "DRIVER", "reason": nil, "metadata": object{}, "retry_after_ms": nil, "violations": []object{},
		"outcome_unknown": false, "text": err.Error(),
	}
	var failed *headway.Error
	switch {
	case errors.As(err, &failed):
		told["code"], told["outcome_unknown"] = codeName(failed.Code), failed.OutcomeUnknown()
		if failed.ReasonName() != "" {
			told["reason"] = failed.ReasonName()
		}
		if failed.Metadata != nil {
			told["metadata"] = failed.Metadata
		}
		if failed.RetryAfter > 0 {
			told["retry_after_ms"] = float64(failed.RetryAfter) / float64(time.Millisecond)
		}
		violations := []object{}
		for _, each := range failed.Violations {
			violations = append(violations, object{"field": each.Field, "description": each.Description})
		}
		told["violations"] = violations
	case errors.Is(err, context.Canceled):
		told["code"] = "CANCELLED"
	case errors.Is(err, context.DeadlineExceeded):
		told["code"] = "DEADLINE_EXCEEDED"
	case errors.Is(err, io.EOF): // what Send says of a stream that has ended: Recv tells why
		told["code"] = "CANCELLED"
	}
	return told
}

func codeName(canonical codes.Code) string { return code.Code(canonical).String() }
