package headway

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"headway.dev/go/headwaypb"
)

const (
	acked    = headwaypb.Settled_SETTLED_ACKED
	dead     = headwaypb.Settled_SETTLED_DEAD
	delayed  = headwaypb.Settled_SETTLED_DELAYED
	extended = headwaypb.Settled_SETTLED_EXTENDED
	stale    = headwaypb.Settled_SETTLED_STALE
	isStale  = headwaypb.ErrorReason_ERROR_REASON_LEASE_STALE
)

// service answers calls as a test says, in this process, and notes what it was asked.
type service struct {
	headwaypb.UnimplementedQueueServiceServer
	mu    sync.Mutex
	asked []proto.Message

	put    func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error)
	get    func(context.Context, *headwaypb.GetRequest) (*headwaypb.GetResponse, error)
	ack    func(*headwaypb.AckRequest) (headwaypb.Settled, error)
	delay  func(*headwaypb.DelayRequest) (headwaypb.Settled, error)
	extend func(*headwaypb.ExtendRequest) (headwaypb.Settled, error)
	watch  func(*headwaypb.WatchPositionRequest, grpc.ServerStreamingServer[headwaypb.WatchPositionResponse]) error
}

func (s *service) note(request proto.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, request)
}

// requests are those of one kind that were asked so far.
func requests[M proto.Message](s *service) []M {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := []M{}
	for _, request := range s.asked {
		if request, is := request.(M); is {
			found = append(found, request)
		}
	}
	return found
}

func (s *service) Describe(_ context.Context, request *headwaypb.DescribeRequest) (*headwaypb.DescribeResponse, error) {
	s.note(request)
	return &headwaypb.DescribeResponse{Queue: &headwaypb.Queue{Name: request.Queue}}, nil
}

func (s *service) Put(ctx context.Context, request *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
	s.note(request)
	return s.put(ctx, request)
}

func (s *service) Get(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
	s.note(request)
	return s.get(ctx, request)
}

func (s *service) Ack(_ context.Context, request *headwaypb.AckRequest) (*headwaypb.AckResponse, error) {
	s.note(request)
	settled, err := s.ack(request)
	return &headwaypb.AckResponse{Results: []*headwaypb.SettleResult{{Settled: settled}}}, err
}

func (s *service) Delay(_ context.Context, request *headwaypb.DelayRequest) (*headwaypb.DelayResponse, error) {
	s.note(request)
	settled, err := s.delay(request)
	return &headwaypb.DelayResponse{Results: []*headwaypb.SettleResult{{Settled: settled}}}, err
}

func (s *service) Extend(_ context.Context, request *headwaypb.ExtendRequest) (*headwaypb.ExtendResponse, error) {
	s.note(request)
	settled, err := s.extend(request)
	return &headwaypb.ExtendResponse{Results: []*headwaypb.SettleResult{{Settled: settled}}}, err
}

func (s *service) WatchPosition(
	request *headwaypb.WatchPositionRequest, stream grpc.ServerStreamingServer[headwaypb.WatchPositionResponse],
) error {
	s.note(request)
	return s.watch(request, stream)
}

// serve starts the service on a free port of this machine, and answers its address.
func serve(t *testing.T, s *service) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	headwaypb.RegisterQueueServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// connect is a client of the service.
func connect(t *testing.T, s *service) *Client {
	t.Helper()
	client, err := Connect(Config{Addresses: []string{serve(t, s)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// refusal is an error as the service answers it.
func refusal(code codes.Code, reason string, more ...protoadapt.MessageV1) error {
	info := &errdetails.ErrorInfo{Domain: "headway.v1", Reason: reason, Metadata: map[string]string{"queue": "q"}}
	told, err := status.New(code, "for people").WithDetails(append([]protoadapt.MessageV1{info}, more...)...)
	if err != nil {
		panic(err)
	}
	return told.Err()
}

var (
	errBroken   = status.Error(codes.Unavailable, "the connection broke") // gRPC's own: nobody knows what became of it
	errStopping = refusal(codes.Unavailable, "SHUTTING_DOWN")             // nothing happened
)

// gives leases one message, for 30 ms, to the first Get, and says that the queue is drained to those behind it.
func gives(message *headwaypb.Message) func(context.Context, *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
	var once sync.Once
	return func(context.Context, *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		var response *headwaypb.GetResponse
		once.Do(func() {
			response = &headwaypb.GetResponse{Deliveries: []*headwaypb.Delivery{{
				Message: message, Lease: "token", Attempt: 1,
				PutAt: at(1000), Waited: durationpb.New(time.Second), LeaseExpiresAt: timestamppb.New(time.UnixMilli(1001_030)),
			}}}
		})
		if response == nil {
			return nil, refusal(codes.FailedPrecondition, "QUEUE_DRAINED")
		}
		return response, nil
	}
}

// settles is a service with one message, which answers every settling so.
func settles(ack, delay, extend headwaypb.Settled) *service {
	return &service{
		get:    gives(&headwaypb.Message{Id: "job", Payload: []byte("print")}),
		ack:    func(*headwaypb.AckRequest) (headwaypb.Settled, error) { return ack, nil },
		delay:  func(*headwaypb.DelayRequest) (headwaypb.Settled, error) { return delay, nil },
		extend: func(*headwaypb.ExtendRequest) (headwaypb.Settled, error) { return extend, nil },
	}
}

var errHandler = errors.New("no paper")

func nothing(context.Context, *Lease) ([]byte, error) { return nil, nil }

func fails(context.Context, *Lease) ([]byte, error) { return nil, errHandler }
