package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go/headwaypb"
)

var w3c = propagation.TraceContext{}

// method finds an RPC as scenarios name it, and its path.
func method(rpc string) (protoreflect.MethodDescriptor, string) {
	if !strings.Contains(rpc, ".") {
		rpc = "QueueService." + rpc
	}
	found := must(protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("headway.v1." + rpc)))
	return found.(protoreflect.MethodDescriptor), "/headway.v1." + strings.Replace(rpc, ".", "/", 1)
}

func empty(kind protoreflect.MessageDescriptor) proto.Message {
	return must(protoregistry.GlobalTypes.FindMessageByName(kind.FullName())).New().Interface()
}

// input is the request of a call.
func input(rpc protoreflect.MethodDescriptor, asked *request) proto.Message {
	message := empty(rpc.Input())
	check(protojson.Unmarshal(asked.Request, message))
	return message
}

// limited is a context with the request's time-out, if it has one.
func limited(ctx context.Context, asked *request) (context.Context, context.CancelFunc) {
	if asked.TimeoutMs != nil {
		return context.WithTimeout(ctx, span(asked.TimeoutMs))
	}
	return context.WithCancel(ctx)
}

func (d *driver) call(ctx context.Context, asked *request) object {
	rpc, path := method(asked.RPC)
	ctx, cancel := limited(ctx, asked)
	defer cancel()
	response := empty(rpc.Output())
	check(asked.client.Conn.Invoke(ctx, path, input(rpc, asked), response))
	return object{"response": messageJSON(response)}
}

func (d *driver) put(ctx context.Context, asked *request) object {
	ctx = w3c.Extract(ctx, propagation.MapCarrier{"traceparent": asked.Traceparent, "tracestate": asked.Tracestate})
	request := &headwaypb.PutRequest{Queue: asked.Queue, Wait: durationpb.New(span(asked.WaitMs))}
	for _, each := range asked.Messages {
		put := &headwaypb.Message{Id: each.ID, Payload: each.Payload, Headers: each.Headers}
		if each.DelayMs != nil {
			put.Available = &headwaypb.Message_Delay{Delay: durationpb.New(span(each.DelayMs))}
		}
		if each.TTLMs != nil {
			put.TimeToLive = durationpb.New(span(each.TTLMs))
		}
		request.Messages = append(request.Messages, put)
	}
	results := []any{}
	for _, result := range must(asked.client.Queues.Put(ctx, request)).Results {
		results = append(results, messageJSON(result))
	}
	return object{"results": results}
}

// stream is a call that streams, over the layer's connection.
type stream struct {
	grpc.ClientStream
	rpc    protoreflect.MethodDescriptor
	cancel context.CancelFunc
	reading
}

func (d *driver) open(_ context.Context, asked *request) object {
	rpc, path := method(asked.RPC)
	ctx, cancel := limited(context.Background(), asked)
	kind := &grpc.StreamDesc{ServerStreams: true, ClientStreams: rpc.IsStreamingClient()}
	s := &stream{ClientStream: must(asked.client.Conn.NewStream(ctx, kind, path)), rpc: rpc, cancel: cancel}
	s.read = s.receive
	d.keep(asked, s)
	if !rpc.IsStreamingClient() {
		if err := s.SendMsg(input(rpc, asked)); !errors.Is(err, io.EOF) { // io.EOF: it has ended; next tells why
			check(err)
		}
		check(s.CloseSend())
	}
	return nil
}

func (s *stream) receive() object {
	response := empty(s.rpc.Output())
	if err := s.RecvMsg(response); !errors.Is(err, io.EOF) {
		check(err)
		return object{"response": messageJSON(response)}
	}
	return object{"end": true}
}

func (s *stream) send(_ context.Context, asked *request) object {
	check(s.SendMsg(input(s.rpc, asked)))
	return nil
}

func (s *stream) halfClose(context.Context, *request) object {
	check(s.CloseSend())
	return nil
}

func (s *stream) close() {
	s.cancel()
	s.wait()
}

// reading reads one thing after the other; what comes after a time-out is kept for the next time.
type reading struct {
	read    func() object
	pending chan func() object
}

func (r *reading) next(ctx context.Context, asked *request) object {
	if r.pending == nil {
		pending := make(chan func() object, 1)
		r.pending = pending
		go func() {
			came := object(nil)
			defer func() {
				err, _ := recover().(error)
				pending <- func() object { return must(came, err) }
			}()
			came = r.read()
		}()
	}
	select {
	case came := <-r.pending:
		r.pending = nil
		return came()
	case <-time.After(span(asked.TimeoutMs)):
		return object{"timeout": true}
	case <-ctx.Done():
		panic(ctx.Err())
	}
}

// wait ends when nothing is read any more.
func (r *reading) wait() {
	if r.pending != nil {
		<-r.pending
	}
}
