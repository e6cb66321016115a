package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// method finds an RPC as scenarios name it, and its path.
func method(rpc string) (protoreflect.MethodDescriptor, string, error) {
	service, name, named := strings.Cut(rpc, ".")
	if !named {
		service, name = "QueueService", rpc
	}
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("headway.v1." + service + "." + name))
	if err != nil {
		return nil, "", err
	}
	return found.(protoreflect.MethodDescriptor), "/headway.v1." + service + "/" + name, nil
}

func empty(kind protoreflect.MessageDescriptor) proto.Message {
	found, err := protoregistry.GlobalTypes.FindMessageByName(kind.FullName())
	if err != nil {
		panic(err)
	}
	return found.New().Interface()
}

func (d *driver) call(ctx context.Context, asked *request) (object, error) {
	rpc, path, err := method(asked.RPC)
	if err != nil {
		return nil, err
	}
	ask, response := empty(rpc.Input()), empty(rpc.Output())
	if err := protojson.Unmarshal(asked.Request, ask); err != nil {
		return nil, err
	}
	if asked.TimeoutMs != nil {
		limited, cancel := context.WithTimeout(ctx, span(asked.TimeoutMs))
		defer cancel()
		ctx = limited
	}
	if err := asked.client.Conn().Invoke(ctx, path, ask, response); err != nil {
		return nil, err
	}
	return object{"response": messageJSON(response)}, nil
}

// stream is a call that streams, over the layer's connection.
type stream struct {
	grpc.ClientStream
	rpc     protoreflect.MethodDescriptor
	cancel  context.CancelFunc
	reading reading
}

func (d *driver) open(_ context.Context, asked *request) (object, error) {
	rpc, path, err := method(asked.RPC)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	if asked.TimeoutMs != nil {
		ctx, cancel = context.WithTimeout(context.Background(), span(asked.TimeoutMs))
	}
	kind := &grpc.StreamDesc{ServerStreams: true, ClientStreams: rpc.IsStreamingClient()}
	opened, err := asked.client.Conn().NewStream(ctx, kind, path)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &stream{ClientStream: opened, rpc: rpc, cancel: cancel}
	s.reading.read = s.read
	d.keep(asked, s)
	if rpc.IsStreamingClient() {
		return nil, nil
	}
	ask := empty(rpc.Input())
	if err := protojson.Unmarshal(asked.Request, ask); err != nil {
		return nil, err
	}
	if err := opened.SendMsg(ask); err != nil && !errors.Is(err, io.EOF) { // Recv tells why it has ended
		return nil, err
	}
	return nil, opened.CloseSend()
}

func (s *stream) read() (object, error) {
	response := empty(s.rpc.Output())
	if err := s.RecvMsg(response); errors.Is(err, io.EOF) {
		return object{"end": true}, nil
	} else if err != nil {
		return nil, err
	}
	return object{"response": messageJSON(response)}, nil
}

func (s *stream) send(_ context.Context, asked *request) (object, error) {
	ask := empty(s.rpc.Input())
	if err := protojson.Unmarshal(asked.Request, ask); err != nil {
		return nil, err
	}
	return nil, s.SendMsg(ask)
}

func (s *stream) halfClose(context.Context, *request) (object, error) { return nil, s.CloseSend() }

func (s *stream) next(ctx context.Context, asked *request) (object, error) {
	return s.reading.next(ctx, span(asked.TimeoutMs))
}

func (s *stream) close() {
	s.cancel()
	s.reading.wait()
}

// reading reads one thing after the other; what comes after a time-out is kept for the next time.
type reading struct {
	read    func() (object, error)
	pending chan answer
}

type answer struct {
	told object
	err  error
}

func (r *reading) next(ctx context.Context, timeout time.Duration) (object, error) {
	if r.pending == nil {
		pending := make(chan answer, 1)
		go func() {
			told, err := r.read()
			pending <- answer{told, err}
		}()
		r.pending = pending
	}
	select {
	case came := <-r.pending:
		r.pending = nil
		return came.told, came.err
	case <-time.After(timeout):
		return object{"timeout": true}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// wait ends when nothing is read any more.
func (r *reading) wait() {
	if r.pending != nil {
		<-r.pending
		r.pending = nil
	}
}

// mixed is a message's JSON with more keys.
func mixed(more object, message proto.Message) object {
	told := object{}
	if err := json.Unmarshal(messageJSON(message), &told); err != nil {
		panic(err)
	}
	for key, value := range more {
		told[key] = value
	}
	return told
}
