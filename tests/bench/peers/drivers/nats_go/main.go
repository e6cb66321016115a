// NATS JetStream by its Go client; the same interface, modes and stream as nats_jetstream.py, see ../../driving.py.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	batchSize    = 100
	ahead        = 4 * batchSize
	digits       = 10
	acksPending  = 100_000
	setUpTimeout = 10 * time.Second
)

type task struct {
	Role, Address, Queue, Fifo, Tally string
	Count, Size, Clients, First, Of   int
}

type client struct {
	task
	conn     *nats.Conn
	js       jetstream.JetStream
	consumer jetstream.Consumer
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// open makes the stream and its consumer; both are the same each time, so it does not matter who is first.
func open(t task) *client {
	conn := must(nats.Connect(t.Address))
	js := must(jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(10*batchSize)))
	ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
	defer cancel()
	stream := must(js.CreateStream(ctx, jetstream.StreamConfig{
		Name: t.Queue, Subjects: []string{t.Queue},
		Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
	}))
	consumer := must(stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: acksPending,
	}))
	return &client{t, conn, js, consumer}
}

// put publishes the share of one client, some batches ahead of their confirmations by the stream.
func (c *client) put(number int) {
	start, end := c.Count*number/c.Of, c.Count*(number+1)/c.Of
	filler := strings.Repeat("x", c.Size-digits)
	waiting := make([]jetstream.PubAckFuture, 0, end-start)
	for one := start; one < end; one++ {
		body := []byte(fmt.Sprintf("%0*d%s", digits, one, filler))
		waiting = append(waiting, must(c.js.PublishAsync(c.Queue, body)))
		if len(waiting) == ahead {
			confirm(waiting[0])
			waiting = waiting[1:]
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

// take gets and acknowledges for ever; the client asks for the next messages ahead. An ack is not answered, so the
// connection is flushed behind those that were sent meanwhile: then the server has read them, and they count.
func (c *client) take(counts []uint32) {
	acknowledged := make(chan int, acksPending)
	go func() {
		for first := range acknowledged {
			numbers := []int{first}
			for range len(acknowledged) {
				numbers = append(numbers, <-acknowledged)
			}
			check(c.conn.Flush())
			for _, number := range numbers {
				mark(counts, number)
			}
		}
	}()
	messages := must(c.consumer.Messages(jetstream.PullMaxMessages(10 * batchSize)))
	for {
		one := must(messages.Next())
		number := must(strconv.Atoi(string(one.Data()[:digits])))
		check(one.Ack())
		acknowledged <- number
	}
}

// mark adds to a count of one byte; counts stand in words that can be added to at once.
func mark(counts []uint32, number int) {
	atomic.AddUint32(&counts[number/4], 1<<(8*(number%4)))
}

func main() {
	log.SetFlags(0)
	var t task
	check(json.Unmarshal([]byte(os.Args[1]), &t))
	clients := []*client{}
	for range t.Clients {
		clients = append(clients, open(t))
	}
	var counts []uint32
	if t.Role == "take" {
		file := must(os.OpenFile(t.Tally, os.O_RDWR, 0))
		bytes := must(syscall.Mmap(int(file.Fd()), 0, t.Count, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))
		counts = unsafe.Slice((*uint32)(unsafe.Pointer(&bytes[0])), (t.Count+3)/4) // a page is mapped whole
	}
	fmt.Println("ready")
	must(os.ReadFile(t.Fifo)) // until it is closed by the one who opened it to write
	var group sync.WaitGroup
	for n, one := range clients {
		group.Add(1)
		go func() {
			defer group.Done()
			if t.Role == "put" {
				one.put(t.First + n)
			} else {
				one.take(counts)
			}
		}()
	}
	group.Wait()
	fmt.Println("done")
}
