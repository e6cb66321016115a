package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"headway.dev/go/headwaypb"

	. "bench.local/drivers/driving"
)

const (
	prefixBytes    = 5       // before each message: whether it is compressed, and its length
	ownWindow      = 1 << 30 // bytes that a service may send before it is told to go on, which no run comes to
	firstWindow    = 1<<16 - 1
	messagesBehind = 1 << 10 // of a stream, that came and were not taken
)

// bare is one connection that speaks as much of gRPC as a run needs, frame by frame: no balancing, no retries, no
// statistics. It takes a part of the processor that a client for all purposes takes, so that on few cores what is
// measured is more of the services and less of who measures them. A connection that breaks ends the process.
type bare struct {
	conn      net.Conn
	authority string

	lock    sync.Mutex
	room    *sync.Cond // windows grew
	framer  *http2.Framer
	out     bytes.Buffer // frames not written yet
	block   bytes.Buffer
	headers *hpack.Encoder
	calls   map[uint32]*bareCall
	next    uint32 // call: a client's have odd numbers
	window  int    // bytes that may be sent
	ofNew   int    // the same of a new call
}

// bareCall is a call on it, of either kind. What a stream has beside SendMsg and RecvMsg no run asks for.
type bareCall struct {
	grpc.ClientStream
	on       *bare
	ctx      context.Context
	id       uint32
	window   int
	body     []byte // what came of a message
	messages chan []byte
	end      error // once messages is closed
}

func connectBare(address string) headwaypb.QueueServiceClient {
	conn := Must(net.Dial("tcp", address))
	b := &bare{conn: conn, authority: address, calls: map[uint32]*bareCall{}, next: 1}
	b.window, b.ofNew = firstWindow, firstWindow
	b.room = sync.NewCond(&b.lock)
	b.framer = http2.NewFramer(&b.out, bufio.NewReader(conn))
	b.framer.ReadMetaHeaders = hpack.NewDecoder(1<<12, nil)
	b.framer.SetReuseFrames()
	b.headers = hpack.NewEncoder(&b.block)
	b.out.WriteString(http2.ClientPreface)
	b.lock.Lock()
	defer b.lock.Unlock()
	Check(b.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: ownWindow}))
	Check(b.framer.WriteWindowUpdate(0, ownWindow-firstWindow))
	b.flush()
	go b.read()
	return headwaypb.NewQueueServiceClient(b)
}

// flush writes what was framed, with the lock held.
func (b *bare) flush() {
	Must(b.conn.Write(b.out.Bytes()))
	b.out.Reset()
}

// begin frames the headers of a call, with the lock held.
func (b *bare) begin(ctx context.Context, method string, behind int) *bareCall {
	call := &bareCall{on: b, ctx: ctx, id: b.next, window: b.ofNew, messages: make(chan []byte, behind)}
	b.next += 2
	b.calls[call.id] = call
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: b.authority}, {Name: "te", Value: "trailers"},
		{Name: "content-type", Value: "application/grpc"},
	}
	if until, limited := ctx.Deadline(); limited {
		seconds := int((time.Until(until) + time.Second - 1) / time.Second)
		fields = append(fields, hpack.HeaderField{Name: "grpc-timeout", Value: strconv.Itoa(max(seconds, 1)) + "S"})
	}
	b.block.Reset()
	for _, field := range fields {
		Check(b.headers.WriteField(field))
	}
	Check(b.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: call.id, BlockFragment: b.block.Bytes(), EndHeaders: true,
	}))
	return call
}

// say frames a message, with the lock held, once there is room for it. Of a call that has ended RecvMsg says why.
func (c *bareCall) say(message any, last bool) {
	framed := Must(proto.MarshalOptions{}.MarshalAppend(make([]byte, prefixBytes, 1<<8), message.(proto.Message)))
	binary.BigEndian.PutUint32(framed[1:], uint32(len(framed)-prefixBytes))
	for b := c.on; min(b.window, c.window) < len(framed); b.room.Wait() {
		if b.calls[c.id] == nil {
			return
		}
		b.flush()
	}
	c.window -= len(framed)
	c.on.window -= len(framed)
	Check(c.on.framer.WriteData(c.id, last, framed))
}

// Invoke is a unary call.
func (b *bare) Invoke(ctx context.Context, method string, request, reply any, _ ...grpc.CallOption) error {
	b.lock.Lock()
	call := b.begin(ctx, method, 1)
	call.say(request, true)
	b.flush()
	b.lock.Unlock()
	if err := call.RecvMsg(reply); err == io.EOF {
		return status.Error(codes.Internal, "no answer")
	} else if err != nil {
		return err
	}
	if <-call.messages; call.end != io.EOF {
		return call.end
	}
	return nil
}

// NewStream is a call of streams.
func (b *bare) NewStream(
	ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption,
) (grpc.ClientStream, error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	call := b.begin(ctx, method, messagesBehind)
	b.flush()
	return call, nil
}

// SendMsg waits for room.
func (c *bareCall) SendMsg(message any) error {
	c.on.lock.Lock()
	defer c.on.lock.Unlock()
	c.say(message, false)
	c.on.flush()
	return nil
}

// RecvMsg waits for the next message; EOF if the call ended well.
func (c *bareCall) RecvMsg(message any) error {
	select {
	case framed, more := <-c.messages:
		if !more {
			return c.end
		}
		return proto.Unmarshal(framed, message.(proto.Message))
	case <-c.ctx.Done():
		c.on.forget(c)
		return status.FromContextError(c.ctx.Err()).Err()
	}
}

// forget cancels a call.
func (b *bare) forget(call *bareCall) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.calls[call.id] == call {
		delete(b.calls, call.id)
		Check(b.framer.WriteRSTStream(call.id, http2.ErrCodeCancel))
		b.flush()
	}
}

// read takes what comes.
func (b *bare) read() {
	for {
		b.take(Must(b.framer.ReadFrame()))
	}
}

func (b *bare) take(frame http2.Frame) {
	switch frame := frame.(type) {
	case *http2.DataFrame:
		b.came(frame.StreamID, frame.Data())
	case *http2.MetaHeadersFrame:
		if frame.StreamEnded() {
			b.ended(frame.StreamID, statusOf(frame))
		}
	case *http2.RSTStreamFrame:
		b.ended(frame.StreamID, status.Error(codes.Unavailable, frame.ErrCode.String()))
	case *http2.GoAwayFrame:
		log.Fatal(frame)
	case *http2.WindowUpdateFrame:
		b.grow(frame.StreamID, int(frame.Increment))
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			b.set(frame)
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			b.lock.Lock()
			defer b.lock.Unlock()
			Check(b.framer.WritePing(true, frame.Data))
			b.flush()
		}
	}
}

func (b *bare) call(id uint32) *bareCall {
	b.lock.Lock()
	defer b.lock.Unlock()
	return b.calls[id]
}

// came adds to what came of a message, and passes on those that are whole.
func (b *bare) came(id uint32, bytes []byte) {
	call := b.call(id)
	if call == nil {
		return // forgotten
	}
	call.body = append(call.body, bytes...)
	for len(call.body) >= prefixBytes {
		end := prefixBytes + int(binary.BigEndian.Uint32(call.body[1:]))
		if len(call.body) < end {
			return
		}
		call.messages <- call.body[prefixBytes:end:end]
		call.body = call.body[end:]
	}
}

func (b *bare) ended(id uint32, end error) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if call := b.calls[id]; call != nil {
		delete(b.calls, id)
		call.end = end
		close(call.messages)
		b.room.Broadcast()
	}
}

// statusOf is what a call's last headers say; EOF if all is well.
func statusOf(headers *http2.MetaHeadersFrame) error {
	code, text := int(codes.Unknown), ""
	for _, field := range headers.RegularFields() {
		switch field.Name {
		case "grpc-status":
			code = Must(strconv.Atoi(field.Value))
		case "grpc-message":
			text = field.Value
		}
	}
	if code == int(codes.OK) {
		return io.EOF
	}
	return status.Error(codes.Code(code), text)
}

func (b *bare) grow(id uint32, by int) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if id == 0 {
		b.window += by
	} else if call := b.calls[id]; call != nil {
		call.window += by
	}
	b.room.Broadcast()
}

// set notes what the service asks for.
func (b *bare) set(settings *http2.SettingsFrame) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if size, asked := settings.Value(http2.SettingInitialWindowSize); asked {
		for _, call := range b.calls {
			call.window += int(size) - b.ofNew
		}
		b.ofNew = int(size)
	}
	if size, asked := settings.Value(http2.SettingHeaderTableSize); asked {
		b.headers.SetMaxDynamicTableSizeLimit(size)
	}
	Check(b.framer.WriteSettingsAck())
	b.flush()
	b.room.Broadcast()
}
