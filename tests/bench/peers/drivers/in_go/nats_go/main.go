// NATS JetStream by its Go client; the same modes and stream as ../../nats_jetstream.py. Options["acks"] "answered": the
// server says of every ack that it is done.
package main

import (
	"context"
	"iter"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	. "bench.local/drivers/driving"
)

const (
	acksPending  = 100_000
	ackTimeout   = time.Minute
	setUpTimeout = 10 * time.Second
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
	}))
	consumer := Must(stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: acksPending,
	}))
	return &client{t, conn, js, consumer}
}

// Put publishes some batches ahead of their confirmations by the stream.
func (c *client) Put(batches iter.Seq[[][]byte]) {
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
