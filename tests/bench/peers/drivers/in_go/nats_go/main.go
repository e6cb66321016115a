// NATS JetStream by its Go client; the same modes and stream as ../../nats_jetstream.py. Options["acks"] "answered": the
// server says of every ack that it is done. Options["put"] "fast": by the fast publisher of its makers' extension, whose
// messages are stored one by one and confirmed together; "atomic": by that extension's batches, each stored as one.
package main

import (
	"context"
	"iter"
	"log"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	. "bench.local/drivers/driving"
)

const (
	acksPending  = 100_000
	ackTimeout   = time.Minute
	setUpTimeout = 10 * time.Second
	putTimeout   = time.Minute
	mostBatches  = 50 // that a stream may have under way, as its server is set by default
)

type client struct {
	Task
	conn     *nats.Conn
	js       jetstream.JetStream
	consumer jetstream.Consumer
}

// open makes the stream and its consumer; both are the same each time, so it does not matter who is first.
func open(t Task) Client {
	conn := Must(nats.Connect(t.Address))
	js := Must(jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(t.Unconfirmed)))
	ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
	defer cancel()
	stream := Must(js.CreateStream(ctx, jetstream.StreamConfig{
		Name: t.Queue, Subjects: []string{t.Queue},
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
		AllowBatchPublish: t.Options["put"] == "fast", AllowAtomicPublish: t.Options["put"] == "atomic",
	}))
	consumer := Must(stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: acksPending,
	}))
	return &client{t, conn, js, consumer}
}

// Put publishes some batches ahead of their confirmations by the stream.
func (c *client) Put(batches iter.Seq[[][]byte]) {
	switch c.Options["put"] {
	case "fast":
		c.putFast(batches)
	case "atomic":
		c.putAtomically(batches)
	default:
		c.putEach(batches)
	}
}

func (c *client) putEach(batches iter.Seq[[][]byte]) {
	waiting := []jetstream.PubAckFuture{}
	for batch := range batches {
		for _, body := range batch {
			waiting = append(waiting, Must(c.js.PublishAsync(c.Queue, body)))
			if len(waiting) == c.Unconfirmed {
				confirm(waiting[0])
				waiting = waiting[1:]
			}
		}
	}
	for _, one := range waiting {
		confirm(one)
	}
}

// putFast has one session for all: the server confirms each batch, or more often, and how many come before it does so.
func (c *client) putFast(batches iter.Seq[[][]byte]) {
	publisher := Must(jetstreamext.NewFastPublisher(c.js,
		jetstreamext.FastPublishFlowControl{
			Flow: uint16(c.Batch), MaxOutstandingAcks: uint16(c.Ahead()), AckTimeout: putTimeout,
		},
		jetstreamext.WithFastPublisherErrorHandler(func(err error) { log.Fatal(err) }),
	))
	for batch := range batches {
		for _, body := range batch {
			Must(publisher.Add(c.Queue, body))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), putTimeout)
	defer cancel()
	Must(publisher.Close(ctx))
}

// putAtomically has as many batches under way as all clients of a stream may have.
func (c *client) putAtomically(batches iter.Seq[[][]byte]) {
	var group sync.WaitGroup
	underWay := make(chan struct{}, max(1, min(c.Ahead(), mostBatches/c.Of)))
	for batch := range batches {
		messages := make([]*nats.Msg, len(batch))
		for n, body := range batch {
			messages[n] = &nats.Msg{Subject: c.Queue, Header: nats.Header{}, Data: body}
		}
		underWay <- struct{}{}
		group.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), putTimeout)
			defer cancel()
			Must(jetstreamext.PublishMsgBatch(ctx, c.js, messages, jetstreamext.BatchFlowControl{AckFirst: false}))
			<-underWay
		})
	}
	group.Wait()
}

func confirm(one jetstream.PubAckFuture) {
	select {
	case <-one.Ok():
	case err := <-one.Err():
		log.Fatal(err)
	}
}

// Take asks for the next messages ahead.
func (c *client) Take(tally Tally) {
	messages := Must(c.consumer.Messages(jetstream.PullMaxMessages(c.Unconfirmed)))
	taken := make(chan jetstream.Msg, acksPending)
	if c.Options["acks"] == "answered" {
		go acknowledge(taken, c.Task, tally)
		for {
			taken <- Must(messages.Next())
		}
	}
	go c.count(taken, tally)
	for {
		one := Must(messages.Next())
		Check(one.Ack())
		taken <- one
	}
}

// count marks what was acknowledged. An ack is not answered, so the connection is flushed behind those that were sent
// meanwhile: then the server has read them, and they count.
func (c *client) count(acknowledged <-chan jetstream.Msg, tally Tally) {
	for first := range acknowledged {
		numbers := []int{NumberOf(first.Data())}
		for range len(acknowledged) {
			numbers = append(numbers, NumberOf((<-acknowledged).Data()))
		}
		Check(c.conn.Flush())
		mark(numbers, tally)
	}
}

// acknowledge acks and marks. The server does acks in their order, so that the last of a batch, or of fewer if no more
// have come, asks to be answered tells of all. Some batches are acknowledged ahead of answers.
func acknowledge(taken <-chan jetstream.Msg, t Task, tally Tally) {
	unanswered := make(chan struct{}, t.Ahead())
	for one := range taken {
		numbers := []int{NumberOf(one.Data())}
		for range min(len(taken), t.Batch-1) {
			Check(one.Ack())
			one = <-taken
			numbers = append(numbers, NumberOf(one.Data()))
		}
		unanswered <- struct{}{}
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
			defer cancel()
			Check(one.DoubleAck(ctx))
			mark(numbers, tally)
			<-unanswered
		}()
	}
}

func mark(numbers []int, tally Tally) {
	for _, number := range numbers {
		tally.Mark(number)
	}
}

func main() { Main(open) }
