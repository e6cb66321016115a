// RabbitMQ by the Go client of its own team; the same modes and queues as ../../rabbitmq.py.
package main

import (
	"iter"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	. "bench.local/drivers/driving"
)

const linger = 10 * time.Millisecond // an ack waits so long for others

type client struct {
	Task
	channel *amqp.Channel
}

// open makes one connection with one channel, and declares the queue, which is the same each time.
func open(t Task) Client {
	channel := Must(Must(amqp.Dial(t.Address)).Channel())
	Check(channel.Confirm(false))
	Check(channel.Qos(t.Unconfirmed, 0, false))
	Must(channel.QueueDeclare(t.Queue, true, false, false, false, amqp.Table{"x-queue-type": t.Options["queue_type"]}))
	return &client{t, channel}
}

// Put publishes some batches ahead of their confirmations, by the default exchange, which leads to the queue of the
// routing key.
func (c *client) Put(batches iter.Seq[[][]byte]) {
	waiting := []*amqp.DeferredConfirmation{}
	for batch := range batches {
		for _, body := range batch {
			message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}
			waiting = append(waiting, Must(c.channel.PublishWithDeferredConfirm("", c.Queue, false, false, message)))
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

func confirm(one *amqp.DeferredConfirmation) {
	if !one.Wait() {
		log.Fatal("the server refused a message")
	}
}

// Take acknowledges a batch, or what has come in a while, by one ack. That is not answered: what counts is that it was
// sent.
func (c *client) Take(tally Tally) {
	deliveries := Must(c.channel.Consume(c.Queue, "", false, false, false, false, nil))
	for last := range deliveries {
		numbers := []int{NumberOf(last.Body)}
		until := time.After(linger)
		for waits := true; waits && len(numbers) < c.Batch; {
			select {
			case last = <-deliveries:
				numbers = append(numbers, NumberOf(last.Body))
			case <-until:
				waits = false
			}
		}
		Check(last.Ack(true))
		for _, number := range numbers {
			tally.Mark(number)
		}
	}
}

func main() { Main(open) }
