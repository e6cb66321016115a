// Puts messages on one service, each at its instant, and gets them on another; see ../../../../latency_drivers.py, which
// starts it and says what the words of its task mean. Calls that fail are counted, not repeated; a stream that breaks
// ends the process.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go"
	"headway.dev/go/headwaypb"

	. "bench.local/drivers/driving"
)

const (
	instantDigits, numberDigits = 20, 10 // what a message begins with
	timeout, long               = 20 * time.Second, 10 * time.Minute
	look, pause                 = 20 * time.Millisecond, 100 * time.Millisecond
)

type task struct {
	PutAddress string `json:"put_address"`
	GetAddress string `json:"get_address"`
	Queue      string
	Streams    bool
	Bare       bool
	Rate       float64
	Seconds    float64
	DrainS     float64 `json:"drain_s"`
	AtOnce     int     `json:"at_once"`
	Waiters    int
	Most       uint32
	Size       int
}

type outcome struct {
	LateMs     []float64 `json:"late_ms"`
	FirstS     float64   `json:"first_s"`
	LastS      float64   `json:"last_s"`
	PutsFailed int       `json:"puts_failed"`
	GetsFailed int       `json:"gets_failed"`
	Missing    int       `json:"missing"`
	Twice      int       `json:"twice"`
	CPUS       float64   `json:"cpu_s"`
}

type driver struct {
	task
	putting, getting headwaypb.QueueServiceClient
	began            time.Time // all instants count from here
	asked            sync.WaitGroup

	lock     sync.Mutex
	told     outcome
	seen     map[int]bool // the numbers that came
	accepted []int
}

func (d *driver) message(number int, instant time.Duration) *headwaypb.Message {
	payload := make([]byte, d.Size)
	copy(payload, fmt.Sprintf("%0*d%0*d", instantDigits, instant.Nanoseconds(), numberDigits, number))
	return &headwaypb.Message{Payload: payload}
}

// came notes deliveries, and returns their leases.
func (d *driver) came(deliveries []*headwaypb.Delivery) []string {
	now := time.Since(d.began)
	leases := make([]string, len(deliveries))
	d.lock.Lock()
	defer d.lock.Unlock()
	for n, one := range deliveries {
		leases[n] = one.Lease
		head := string(one.Message.Payload[:instantDigits+numberDigits])
		instant, number := Must(strconv.ParseInt(head[:instantDigits], 10, 64)), Must(strconv.Atoi(head[instantDigits:]))
		if d.seen[number] {
			d.told.Twice++
		}
		d.seen[number] = true
		if len(d.told.LateMs) == 0 {
			d.told.FirstS = now.Seconds()
		}
		d.told.LateMs = append(d.told.LateMs, float64(now-time.Duration(instant))/float64(time.Millisecond))
		d.told.LastS = now.Seconds()
	}
	return leases
}

// answered notes what became of a Put.
func (d *driver) answered(number int, results []*headwaypb.PutResult, err error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if err == nil && results[0].GetError() == nil {
		d.accepted = append(d.accepted, number)
	} else {
		d.told.PutsFailed++
	}
}

// wait gets what there is, a message at least, each call with the acks of the one before.
func (d *driver) wait(ctx context.Context) {
	var leases []string
	for ctx.Err() == nil {
		request := &headwaypb.GetRequest{Queue: d.Queue, MaxMessages: d.Most, Wait: durationpb.New(long), Ack: leases}
		answer, err := d.getting.Get(ctx, request)
		if err == nil {
			leases = d.came(answer.Deliveries)
		} else if ctx.Err() == nil {
			d.lock.Lock()
			d.told.GetsFailed++
			d.lock.Unlock()
			time.Sleep(pause)
		}
	}
}

// consume gets by a stream that holds no more messages than there would be calls, and acknowledges each delivery.
func (d *driver) consume(ctx context.Context) {
	stream := Must(d.getting.Consume(ctx))
	start := &headwaypb.ConsumeStart{Queue: d.Queue, Credit: &headwaypb.Credit{Messages: uint32(d.Waiters)}}
	Check(stream.Send(&headwaypb.ConsumeRequest{Step: &headwaypb.ConsumeRequest_Start{Start: start}}))
	for {
		answer, err := stream.Recv()
		if ctx.Err() != nil {
			return
		}
		if leases := d.came(Must(answer, err).Deliveries); len(leases) > 0 {
			ack := &headwaypb.ConsumeRequest_Ack{Ack: &headwaypb.AckRequest{Leases: leases}}
			Check(stream.Send(&headwaypb.ConsumeRequest{Step: ack}))
		}
	}
}

// puts is how a message is put without waiting for the answer, behind which done is called.
func (d *driver) puts(done func()) func(number int, instant time.Duration) {
	if !d.Streams {
		return func(number int, instant time.Duration) {
			go func() {
				defer done()
				limited, cancel := context.WithTimeout(context.Background(), timeout)
				defer cancel()
				messages := []*headwaypb.Message{d.message(number, instant)}
				answer, err := d.putting.Put(limited, &headwaypb.PutRequest{Queue: d.Queue, Messages: messages})
				d.answered(number, answer.GetResults(), err)
			}()
		}
	}
	stream := Must(d.putting.Produce(context.Background()))
	go func() {
		for {
			answer := Must(stream.Recv())
			d.answered(int(answer.Batch), answer.Results, nil)
			done()
		}
	}()
	return func(number int, instant time.Duration) {
		messages := []*headwaypb.Message{d.message(number, instant)}
		Check(stream.Send(&headwaypb.ProduceRequest{Queue: d.Queue, Messages: messages, Batch: uint64(number)}))
	}
}

// putAll puts at each instant, whether or not what was put before is answered; what was missed at once. Rate 0: as much
// as AtOnce unanswered messages can.
func (d *driver) putAll() {
	room := make(chan struct{}, d.AtOnce)
	put := d.puts(func() {
		if d.Rate == 0 {
			<-room
		}
		d.asked.Done()
	})
	if d.Rate == 0 {
		for number := 0; time.Since(d.began).Seconds() < d.Seconds; number++ {
			room <- struct{}{}
			d.asked.Add(1)
			put(number, time.Since(d.began))
		}
	} else {
		for number := range int(d.Rate * d.Seconds) {
			instant := time.Duration(float64(number) / d.Rate * float64(time.Second))
			time.Sleep(instant - time.Since(d.began))
			d.asked.Add(1)
			put(number, instant)
		}
	}
	d.asked.Wait()
}

// missing is how many were accepted and did not come so far.
func (d *driver) missing() int {
	d.lock.Lock()
	defer d.lock.Unlock()
	count := 0
	for _, number := range d.accepted {
		if !d.seen[number] {
			count++
		}
	}
	return count
}

// eventually waits until something is so, or for so long.
func eventually(within time.Duration, isSo func() bool) {
	for until := time.Now().Add(within); !isSo() && time.Now().Before(until); {
		time.Sleep(look)
	}
}

// stands tells whether all who get wait.
func (d *driver) stands(count int) bool {
	queue := &headwaypb.DescribeRequest{Queue: d.Queue}
	return Must(d.getting.Describe(context.Background(), queue)).Queue.Counts.ConsumersWaiting >= uint64(count)
}

func (d *driver) connect(address string) headwaypb.QueueServiceClient {
	if d.Bare {
		return connectBare(address)
	}
	return Must(headway.Connect(headway.Config{Addresses: []string{address}})).Queues
}

func cpu() float64 {
	var used syscall.Rusage
	Check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

func main() {
	log.SetFlags(0)
	d := &driver{seen: map[int]bool{}, began: time.Now()}
	Check(json.Unmarshal([]byte(os.Args[1]), &d.task))
	d.putting, d.getting = d.connect(d.PutAddress), d.connect(d.GetAddress)
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	count, get := d.Waiters, d.wait
	if d.Streams {
		count, get = 1, d.consume
	}
	for range count {
		group.Go(func() { get(ctx) })
	}
	eventually(timeout, func() bool { return d.stands(count) })
	used := cpu()
	d.began = time.Now()
	d.putAll()
	eventually(time.Duration(d.DrainS*float64(time.Second)), func() bool { return d.missing() == 0 })
	d.told.CPUS = cpu() - used
	stop()
	group.Wait()
	d.told.Missing = d.missing()
	Check(json.NewEncoder(os.Stdout).Encode(d.told))
}
