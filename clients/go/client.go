package headway

import (
	"cmp"
	"context"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go/headwaypb"
)

// Calls that only read, or carry what names their effect, beside Put and Get with ids. Never repeated: Close, Delete
// and Withdraw (the second fails by rule), Purge and Repair (the second's answer tells its own part only).
const repeatable = "Ack Check Create Delay Describe Extend GetServerInfo List ListDead ListLeased Pause Peek Resume Update"

// Client is a connection to the service, safe for concurrent use. Make it with [Connect].
type Client struct {
	// Queues is the generated stub of QueueService. A call without a deadline gets one: the call timeout beyond the
	// wait it asks for. Streams have none. While the service is unavailable a call is made again until its deadline, if
	// it only reads or carries ids; so is one whose answer does not come within half of its time beyond the wait, and of
	// the call timeout. Once a try may have taken effect such a Put turns from REJECT to KEEP, so what that
	// try accepted is then deduplicated, and body_differs tells that the id is another message's; and the call fails
	// with that try's error, unless a later answer tells what became of it. A Get with a name that waits, and is refused
	// for who calls, is made once more, with the token of now: the last one may have expired.
	Queues headwaypb.QueueServiceClient
	// Admin is the generated stub of AdminService. Its calls get deadlines, and are made again, as those of Queues.
	Admin headwaypb.AdminServiceClient

	// Conn is the connection below the stubs.
	Conn *grpc.ClientConn

	callTimeout time.Duration
}

// Config tells [Connect] how to connect; its zero values are what one mostly wants.
type Config struct {
	// Addresses name the service: HOST:PORT, or unix:PATH. Calls go round robin over all that are given, and over all
	// addresses that a single name has. None: the environment's HEADWAY_ADDRESS (several: with commas between them),
	// else 127.0.0.1:7420.
	Addresses []string
	// CallTimeout is how long a call without a deadline may take beyond the wait it asks for. 0: 10 s.
	CallTimeout time.Duration
	// Dial are options of gRPC's own: interceptors, such as that of package headway.dev/go/headwayotel;
	// grpc.WithTransportCredentials with credentials.NewTLS in place of plain text; and grpc.WithPerRPCCredentials with
	// a [Token], which is sent over TLS only.
	Dial []grpc.DialOption
}

// Token gives each call and stream its bearer token, and is asked anew for each, so it must be quick. A call for which
// it fails is not made, and fails with UNAUTHENTICATED.
type Token func(ctx context.Context) (string, error)

// GetRequestMetadata is what makes it gRPC's PerRPCCredentials.
func (t Token) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := t(ctx)
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(token)}, err
}

// RequireTransportSecurity says that [Connect] fails with a token and plain text.
func (Token) RequireTransportSecurity() bool { return true }

// Connect makes a client. It does not block: the first call opens the connection, and one that is lost is opened again.
// It fails only for an address or an option that cannot be understood.
func Connect(config Config) (*Client, error) {
	c := &Client{callTimeout: cmp.Or(config.CallTimeout, 10*time.Second)}
	reconnect := backoff.Config{BaseDelay: time.Second / 5, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(c.unary),
		// That much of one answer.
		grpc.WithUserAgent("headway-go/" + Version), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		// The service allows pings every 10 s and more.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second})}
	target := cmp.Or(strings.Join(config.Addresses, ","), strings.TrimSpace(os.Getenv("HEADWAY_ADDRESS")), "127.0.0.1:7420")
	addresses := strings.Fields(strings.ReplaceAll(target, ",", " "))
	if target = strings.Join(addresses, ","); len(addresses) > 1 {
		several, state := manual.NewBuilderWithScheme("headway"), resolver.State{}
		for _, address := range addresses {
			state.Addresses = append(state.Addresses, resolver.Address{Addr: address, ServerName: address})
		}
		several.InitialState(state)
		target, dial = "headway:///several", append(dial, grpc.WithResolvers(several))
	}
	conn, err := grpc.NewClient(target, append(dial, config.Dial...)...)
	c.Conn, c.Queues, c.Admin = conn, headwaypb.NewQueueServiceClient(conn), headwaypb.NewAdminServiceClient(conn)
	return c, err
}

// Close ends the connection. Calls and streams that are under way fail.
func (c *Client) Close() error { return c.Conn.Close() }

// Queue names a queue to work with. It does not ask whether there is one.
func (c *Client) Queue(name string) *Queue { return &Queue{client: c, name: name} }

// unary makes every call that does not stream: with a deadline, again where that does no harm, with a typed error.
func (c *Client) unary(ctx context.Context, method string, request, response any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	waited := time.Now() // when what it asks to wait is over
	if waiting, can := request.(interface{ GetWait() *durationpb.Duration }); can {
		waited = waited.Add(max(0, waiting.GetWait().AsDuration()))
	}
	deadline, _ := ctx.Deadline()
	deadline = cmp.Or(deadline, waited.Add(c.callTimeout))
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	put, isPut := request.(*headwaypb.PutRequest)
	get, _ := request.(*headwaypb.GetRequest)
	isNameless := func(message *headwaypb.Message) bool { return message.GetId() == "" }
	isNamed := get.GetAttemptId() != "" || isPut && !slices.ContainsFunc(put.Messages, isNameless)
	if !isNamed && !slices.Contains(strings.Fields(repeatable), path.Base(method)) {
		return Typed(invoke(ctx, method, request, response, conn, options...))
	}
	var lost *Error // the last try that may have done it
	for failures := 1; ; failures++ {
		wait := max(0, time.Until(waited))
		// An answer that does not come leaves time for another try, which may meet another host.
		try, end := context.WithTimeout(ctx, wait+max(min(time.Until(deadline)-wait, c.callTimeout)/2, time.Second))
		err := Typed(invoke(try, method, request, response, conn, options...))
		end()
		failed, is := err.(*Error)
		// FAILED_PRECONDITION refuses a Put, as other codes any call, without a look at what an earlier try did.
		if !is || slices.Contains(tellingCodes, failed.Code) && (failed.Code != codes.FailedPrecondition || !isPut) {
			return err
		} else if failures == 1 && get.GetWait().AsDuration() > 0 && slices.Contains(ofCallers, failed.Code) {
			continue // once, with the token of now
		} else if failed.OutcomeUnknown() {
			lost = failed
		}
		isOurs := ctx.Err() != nil || failed.Code != codes.Canceled && failed.Code != codes.DeadlineExceeded
		if failed.Code != codes.Unavailable && isOurs || !c.pause(ctx, failures, failed) {
			return cmp.Or(lost, failed)
		}
		if isPut && lost != nil && put.OnDuplicate < headwaypb.OnDuplicate_ON_DUPLICATE_KEEP {
			put = proto.Clone(put).(*headwaypb.PutRequest)
			put.OnDuplicate, request = headwaypb.OnDuplicate_ON_DUPLICATE_KEEP, put
		}
	}
}

// pause waits after the n-th failure in a row: doubling from 0.1 s to 5 s, with jitter, never shorter than the service
// asked for. It returns false if ctx ends before that, and at once if no waiting mends such a failure, or Close was
// called. What says when to come again passes, and so does, as the end of what was served until then (failures: 0), what
// the token of now may mend.
func (c *Client) pause(ctx context.Context, failures int, err error) bool {
	failed, is := err.(*Error)
	isPassing := is && (failed.RetryAfter > 0 || slices.Contains(passing, failed.Code) ||
		failures == 0 && slices.Contains(ofCallers, failed.Code))
	span := min(5*time.Second, 100*time.Millisecond<<max(0, min(failures-1, 16)))
	return isPassing && c.Conn.GetState().String() != "SHUTDOWN" &&
		sleep(ctx, time.Now().Add(max(span/2+rand.N(span/2), failed.RetryAfter)))
}

// sleep returns at a time, or false before that if ctx ends.
func sleep(ctx context.Context, until time.Time) bool {
	paused, end := context.WithDeadline(ctx, until)
	defer end()
	<-paused.Done()
	return ctx.Err() == nil
}
