// NSQ by its Go client. Address is that for clients and that for HTTP, with a comma between.
package main

import (
	"fmt"
	"io"
	"iter"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/nsqio/go-nsq"

	. "bench.local/drivers/driving"
)

const channel = "workers"

type client struct {
	Task
	address  string
	producer *nsq.Producer
}

// open makes the topic and its channel, which are the same each time, so it does not matter who is first: to a channel
// that nobody has made nothing would be copied.
func open(t Task) Client {
	address, web, _ := strings.Cut(t.Address, ",")
	post(fmt.Sprintf("http://%s/topic/create?topic=%s", web, t.Queue))
	post(fmt.Sprintf("http://%s/channel/create?topic=%s&channel=%s", web, t.Queue, channel))
	producer := Must(nsq.NewProducer(address, nsq.NewConfig()))
	producer.SetLogger(log.New(os.Stderr, "", 0), nsq.LogLevelWarning)
	Check(producer.Ping())
	return &client{t, address, producer}
}

func post(url string) {
	answer := Must(http.Post(url, "", nil))
	defer answer.Body.Close()
	if said := Must(io.ReadAll(answer.Body)); answer.StatusCode != http.StatusOK {
		log.Fatalf("%s: %s %s", url, answer.Status, said)
	}
}

// Put publishes some batches ahead of their confirmations.
func (c *client) Put(batches iter.Seq[[][]byte]) {
	confirmed, unconfirmed := make(chan *nsq.ProducerTransaction, c.Ahead()), 0
	confirm := func() {
		Check((<-confirmed).Error)
		unconfirmed--
	}
	for batch := range batches {
		if unconfirmed == c.Ahead() {
			confirm()
		}
		Check(c.producer.MultiPublishAsync(c.Queue, batch, confirmed))
		unconfirmed++
	}
	for unconfirmed > 0 {
		confirm()
	}
}

// Take has the next messages come ahead. That a message is finished is not answered, and counts when it is sent.
func (c *client) Take(tally Tally) {
	config := nsq.NewConfig()
	config.MaxInFlight = c.Unconfirmed
	config.MsgTimeout = 10 * time.Minute
	consumer := Must(nsq.NewConsumer(c.Queue, channel, config))
	consumer.SetLogger(log.New(os.Stderr, "", 0), nsq.LogLevelWarning)
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		message.Finish()
		tally.Mark(NumberOf(message.Body))
		return nil
	}))
	Check(consumer.ConnectToNSQD(c.address))
	<-consumer.StopChan
}

func main() { Main(open) }
