package headway

import (
	"cmp"
	"context"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go/headwaypb"
)

// Calls that gRPC may make again by itself: they do no harm when done twice, and their answer says the same. Put, Get,
// Ack, Delay and Extend are repeated by again, which knows the ids they carry and can tell the caller. Never repeated:
// Close and Delete (the second fails by rule), Purge and Repair (the second's answer tells its own part only), Redrive.
const serviceConfig = `{"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [{
	"name": [
		{"service": "headway.v1.QueueService", "method": "Create"}, {"service": "headway.v1.QueueService", "method": "Describe"},
		{"service": "headway.v1.QueueService", "method": "List"}, {"service": "headway.v1.QueueService", "method": "Update"},
		{"service": "headway.v1.QueueService", "method": "Peek"}, {"service": "headway.v1.AdminService", "method": "Check"},
		{"service": "headway.v1.AdminService", "method": "GetServerInfo"}, {"service": "headway.v1.AdminService", "method": "ListDead"},
		{"service": "headway.v1.AdminService", "method": "Pause"}, {"service": "headway.v1.AdminService", "method": "Resume"}
	],
	"retryPolicy": {
		"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]
	}
}]}`

// Client is a connection to the service, safe for concurrent use. Make it with [Connect].
type Client struct {
	// Queues is the generated stub of QueueService. A call without a deadline gets one: the call timeout beyond the
	// wait it asks for. Streams have none.
	Queues headwaypb.QueueServiceClient
	// Admin is the generated stub of AdminService. Calls get deadlines as those of Queues do.
	Admin headwaypb.AdminServiceClient

	conn        *grpc.ClientConn
	addresses   []string
	callTimeout time.Duration
	tracing     Tracing
	dial        []grpc.DialOption
}

// Tracing carries trace context through the headers of messages. Package headway.dev/go/headwayotel has one for
// OpenTelemetry.
type Tracing interface {
	// Inject writes the span that is current in ctx, if there is one, into headers.
	Inject(ctx context.Context, headers map[string]string)
	// Extract returns ctx with what the headers say as the remote parent of new spans.
	Extract(ctx context.Context, headers map[string]string) context.Context
}

// ConnectOption changes how [Connect] connects.
type ConnectOption func(*Client)

// WithAddress names the service: HOST:PORT, or unix:PATH. Calls go round robin over all that are given, and over all
// addresses that a single name has. Default: the environment's HEADWAY_ADDRESS (several: with commas between them),
// else 127.0.0.1:7420.
func WithAddress(addresses ...string) ConnectOption {
	return func(c *Client) { c.addresses = addresses }
}

// WithCallTimeout says how long a call without a deadline may take beyond the wait it asks for. Default: 10 s.
func WithCallTimeout(timeout time.Duration) ConnectOption {
	return func(c *Client) { c.callTimeout = timeout }
}

// WithTracing puts the current trace context into the headers of messages that [Queue.Put] puts, unless they carry one,
// and offers it to handlers in their context.
func WithTracing(tracing Tracing) ConnectOption { return func(c *Client) { c.tracing = tracing } }

// WithDialOptions adds options of gRPC's own, for example interceptors, or grpc.WithTransportCredentials in place of
// plain text.
func WithDialOptions(options ...grpc.DialOption) ConnectOption {
	return func(c *Client) { c.dial = append(c.dial, options...) }
}

// Connect makes a client. It does not block: the first call opens the connection, and one that is lost is opened again.
// It fails only for an address or an option that cannot be understood.
func Connect(options ...ConnectOption) (*Client, error) {
	c := &Client{callTimeout: 10 * time.Second}
	reconnect := backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}
	c.dial = []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent("headway-go/" + Version),
		grpc.WithDefaultServiceConfig(serviceConfig),
		// The service allows pings every 10 s and more.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
		grpc.WithChainUnaryInterceptor(c.unary),
		grpc.WithChainStreamInterceptor(streams),
	}
	for _, option := range options {
		option(c)
	}
	target := cmp.Or(strings.Join(c.addresses, ","), os.Getenv("HEADWAY_ADDRESS"), "127.0.0.1:7420")
	if addresses := strings.Split(target, ","); len(addresses) > 1 {
		state := resolver.State{}
		for _, address := range addresses {
			each := resolver.Address{Addr: strings.TrimSpace(address), ServerName: strings.TrimSpace(address)}
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{each}})
		}
		several := manual.NewBuilderWithScheme("headway")
		several.InitialState(state)
		target, c.dial = "headway:///several", append(c.dial, grpc.WithResolvers(several))
	}
	conn, err := grpc.NewClient(target, c.dial...)
	if err != nil {
		return nil, err
	}
	c.conn, c.Queues, c.Admin = conn, headwaypb.NewQueueServiceClient(conn), headwaypb.NewAdminServiceClient(conn)
	return c, nil
}

// Conn is the connection below the stubs.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Close ends the connection. Calls and streams that are under way fail.
func (c *Client) Close() error { return c.conn.Close() }

// Queue names a queue to work with. It does not ask whether there is one.
func (c *Client) Queue(name string) *Queue { return &Queue{client: c, name: name} }

func (c *Client) unary(
	ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	if _, has := ctx.Deadline(); !has {
		timeout := c.callTimeout
		if waiting, can := request.(interface{ GetWait() *durationpb.Duration }); can {
			timeout += max(0, waiting.GetWait().AsDuration())
		}
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = limited
	}
	return typed(invoke(ctx, method, request, response, conn, options...))
}

func streams(
	ctx context.Context, what *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	opened, err := open(ctx, what, conn, method, options...)
	return typedStream{opened}, typed(err)
}

// typedStream is a stream whose failures are of type *Error.
type typedStream struct{ grpc.ClientStream }

func (s typedStream) SendMsg(message any) error { return typed(s.ClientStream.SendMsg(message)) }
func (s typedStream) RecvMsg(message any) error { return typed(s.ClientStream.RecvMsg(message)) }
