// The conformance driver of Go: does what the lines on stdin ask, by the layer of clients/go. Whatever goes wrong in an
// operation is a panic with an error, which is its answer.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"headway.dev/go"
	"headway.dev/go/headwayotel"
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
	Options                                                                           options
	TimeoutMs                                                                         *float64 `json:"timeout_ms"`
	WaitMs                                                                            *float64 `json:"wait_ms"`
	LeaseMs                                                                           *float64 `json:"lease_ms"`
	DelayMs                                                                           *float64 `json:"delay_ms"`
	Messages                                                                          []struct {
		ID      string
		Payload []byte
		Headers map[string]string
		DelayMs *float64 `json:"delay_ms"`
		TTLMs   *float64 `json:"ttl_ms"`
	}

	client *headway.Client // the one that is named
}

// options are those of connect. The files are PEM; a CA: by TLS; a token's file is read for each call.
type options struct {
	CallTimeoutMs *float64 `json:"call_timeout_ms"`
	CA, Cert, Key string
	TokenFile     string `json:"token_file"`
}

// handle is something that stays open over many requests.
type handle interface{ close() }

type driver struct {
	clients, handles, cancels sync.Map // by name, by names of client and handle, by id
	writing                   sync.Mutex
}

type operation func(*driver, context.Context, *request) object

var operations = map[string]operation{
	"hello": (*driver).hello, "connect": (*driver).connect, "disconnect": (*driver).disconnect, "cancel": (*driver).cancel,
	"call": (*driver).call, "put": (*driver).put, "open": (*driver).open, "close": (*driver).close,
	"send": of((*stream).send), "half_close": of((*stream).halfClose), "next": of((*stream).next),
	"lease": (*driver).lease, "lease_end": (*driver).leaseEnd, "lease_ack": of((*held).ack), "lease_delay": of((*held).delay),
	"lease_progress": of((*held).progress), "lease_is_lost": of((*held).isLost),
	"work": (*driver).work, "finish": of((*working).finish), "work_stop": of((*working).stopSoon),
	"watch": (*driver).watch, "watch_next": of((*watching).next), "watch_close": (*driver).close,
}

func main() {
	d := &driver{}
	lines := bufio.NewReader(os.Stdin)
	for line, err := lines.ReadBytes('\n'); err == nil; line, err = lines.ReadBytes('\n') {
		asked := &request{}
		check(json.Unmarshal(line, asked))
		ctx, cancel := context.WithCancel(context.Background())
		d.cancels.Store(asked.ID, cancel)
		if client, is := d.clients.Load(asked.Client); is {
			asked.client = client.(*headway.Client)
		}
		go d.tell(object{"id": asked.ID}, func() object { return operations[asked.Op](d, ctx, asked) })
	}
	for name, client := range d.clients.Range {
		d.disconnect(context.Background(), &request{Client: name.(string), client: client.(*headway.Client)})
	}
}

// tell writes a line: what is done stands in it as "ok", and what goes wrong as "error".
func (d *driver) tell(line object, do func() object) {
	defer func() {
		if err, failed := recover().(error); failed {
			line["error"] = errorJSON(err)
		}
		d.event(line)
	}()
	done := do()
	if done == nil {
		done = object{}
	}
	line["ok"] = done
}

// event writes a line that nobody asked for.
func (d *driver) event(line object) {
	d.writing.Lock()
	defer d.writing.Unlock()
	check(json.NewEncoder(os.Stdout).Encode(line))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// of finds the handle that an operation is about.
func of[H handle](do func(H, context.Context, *request) object) operation {
	return func(d *driver, ctx context.Context, asked *request) object {
		opened, _ := d.handles.Load([2]string{asked.Client, asked.Handle})
		return do(opened.(H), ctx, asked)
	}
}

func (d *driver) keep(asked *request, opened handle) {
	d.handles.Store([2]string{asked.Client, asked.Handle}, opened)
}

func (d *driver) take(asked *request) handle {
	opened, _ := d.handles.LoadAndDelete([2]string{asked.Client, asked.Handle})
	return opened.(handle)
}

func (d *driver) hello(context.Context, *request) object {
	features := []string{"call", "stream", "lease", "work", "watch", "trace"}
	return object{"language": "go", "version": headway.Version, "features": features}
}

func (d *driver) connect(_ context.Context, asked *request) object {
	config := headway.Config{Addresses: asked.Addresses, CallTimeout: span(asked.Options.CallTimeoutMs)}
	config.Dial = append(asked.Options.secured(), headwayotel.Inject())
	d.clients.Store(asked.Client, must(headway.Connect(config)))
	return nil
}

func (o options) secured() []grpc.DialOption {
	dial := []grpc.DialOption{}
	if o.CA != "" {
		trusted := &tls.Config{RootCAs: x509.NewCertPool()}
		trusted.RootCAs.AppendCertsFromPEM(must(os.ReadFile(o.CA)))
		if o.Cert != "" {
			trusted.Certificates = []tls.Certificate{must(tls.LoadX509KeyPair(o.Cert, o.Key))}
		}
		dial = append(dial, grpc.WithTransportCredentials(credentials.NewTLS(trusted)))
	}
	if o.TokenFile != "" {
		token := headway.Token(func(context.Context) (string, error) {
			text, err := os.ReadFile(o.TokenFile)
			return string(text), err
		})
		dial = append(dial, grpc.WithPerRPCCredentials(token))
	}
	return dial
}

func (d *driver) disconnect(_ context.Context, asked *request) object {
	for key, opened := range d.handles.Range {
		if key.([2]string)[0] == asked.Client {
			d.handles.Delete(key)
			opened.(handle).close()
		}
	}
	d.clients.Delete(asked.Client)
	check(asked.client.Close())
	return nil
}

func (d *driver) cancel(_ context.Context, asked *request) object {
	cancel, _ := d.cancels.Load(asked.Target)
	cancel.(context.CancelFunc)()
	return nil
}

func (d *driver) close(_ context.Context, asked *request) object {
	d.take(asked).close()
	return nil
}

// span is none if there is no number.
func span(ms *float64) time.Duration {
	if ms == nil {
		return 0
	}
	return time.Duration(*ms * float64(time.Millisecond))
}

func messageJSON(message proto.Message) json.RawMessage { return must(protojson.Marshal(message)) }

func errorJSON(err error) object {
	told := object{"reason": nil, "retry_after_ms": nil, "text": err.Error()}
	var failed *headway.Error
	if !errors.As(headway.Typed(err), &failed) {
		failed = &headway.Error{}
	}
	told["violations"] = append([]*errdetails.BadRequest_FieldViolation{}, failed.Violations...) // never null
	told["metadata"], told["outcome_unknown"] = object{}, failed.OutcomeUnknown()
	if failed.Metadata != nil {
		told["metadata"] = failed.Metadata
	}
	if failed.ReasonName() != "" {
		told["reason"] = failed.ReasonName()
	}
	if failed.RetryAfter > 0 {
		told["retry_after_ms"] = float64(failed.RetryAfter) / float64(time.Millisecond)
	}
	switch {
	case failed.Code != 0:
		told["code"] = code.Code(failed.Code).String()
	case errors.Is(err, context.Canceled), errors.Is(err, io.EOF): // a send on a stream that ended: next tells why
		told["code"] = "CANCELLED"
	default:
		told["code"] = "DRIVER"
	}
	return told
}
