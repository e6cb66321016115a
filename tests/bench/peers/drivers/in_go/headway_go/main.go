// Headway's streams by its Go client; the same modes as ../../headway_streams.py.
package main

import (
	"context"
	"io"
	"iter"
	"log"
	"slices"

	"headway.dev/go"
	"headway.dev/go/headwaypb"

	. "bench.local/drivers/driving"
)

type client struct {
	Task
	queues headwaypb.QueueServiceClient
}

// open makes a connection, and the queue if it is not there.
func open(t Task) Client {
	one := Must(headway.Connect(headway.Config{Addresses: []string{t.Address}}))
	Must(one.Queues.Create(context.Background(), &headwaypb.CreateRequest{Queue: t.Queue}))
	return &client{t, one.Queues}
}

// Put sends some batches ahead of their answers, on one stream.
func (c *client) Put(batches iter.Seq[[][]byte]) {
	stream := Must(c.queues.Produce(context.Background()))
	ahead, ended := make(chan struct{}, c.Ahead()), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			answer, err := stream.Recv()
			if err == io.EOF {
				return
			}
			for _, result := range Must(answer, err).Results {
				if result.Error != nil {
					log.Fatal(result)
				}
			}
			<-ahead
		}
	}()
	for batch := range batches {
		messages, request := make([]headwaypb.Message, len(batch)), &headwaypb.ProduceRequest{Queue: c.Queue}
		for n, body := range batch {
			messages[n].Payload = body
			request.Messages = append(request.Messages, &messages[n])
		}
		ahead <- struct{}{}
		Check(stream.Send(request))
	}
	Check(stream.CloseSend())
	if <-ended; len(ahead) > 0 {
		log.Fatalf("%d batches were not answered", len(ahead))
	}
}

type held struct {
	lease  string
	number int
}

// Take acknowledges each delivery as it came, on one stream. Results of acks come in the order asked, which is that of
// the deliveries; a message counts when its ack is answered.
func (c *client) Take(tally Tally) {
	stream := Must(c.queues.Consume(context.Background()))
	credit := &headwaypb.Credit{Messages: uint32(c.Unconfirmed)}
	start := &headwaypb.ConsumeStart{Queue: c.Queue, Credit: credit}
	Check(stream.Send(&headwaypb.ConsumeRequest{Step: &headwaypb.ConsumeRequest_Start{Start: start}}))
	done := make(chan []string, c.Unconfirmed) // there are never more, so it is never full
	go func() {
		for leases := range done {
			ack := &headwaypb.ConsumeRequest_Ack{Ack: &headwaypb.AckRequest{Leases: leases}}
			Check(stream.Send(&headwaypb.ConsumeRequest{Step: ack}))
		}
	}()
	var unanswered []held
	for {
		answer := Must(stream.Recv())
		for n, result := range answer.Settled {
			if result.Lease != unanswered[n].lease {
				log.Fatalf("%v in place of %v", result, unanswered[n])
			}
			if result.Settled == headwaypb.Settled_SETTLED_ACKED {
				tally.Mark(unanswered[n].number)
			}
		}
		unanswered = unanswered[len(answer.Settled):]
		leases := make([]string, len(answer.Deliveries))
		for n, one := range answer.Deliveries {
			leases[n] = one.Lease
			unanswered = append(unanswered, held{one.Lease, NumberOf(one.Message.Payload)})
		}
		for batch := range slices.Chunk(leases, c.Batch) {
			done <- batch
		}
	}
}

func main() { Main(open) }
