// Package driving is the frame of a driver in Go: the same interface, batches and counts as ../../../driving.py.
package driving

import (
	"encoding/json"
	"fmt"
	"iter"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const digits = 10

// Task is what a process is to do; see Task in driving.py.
type Task struct {
	Role, Address, Queue, Fifo, Tally string
	// Batch is how many messages go together, Unconfirmed how many may be sent, or held, and not confirmed yet.
	Count, Size, Clients, First, Of, Batch, Unconfirmed int
	Options                                             map[string]string
}

// Ahead is how many batches may be sent and not confirmed yet.
func (t Task) Ahead() int {
	return max(1, t.Unconfirmed/t.Batch)
}

// Client is one connection. Put puts all, and returns when all are confirmed; Take gets and acknowledges for ever, and
// marks what is acknowledged.
type Client interface {
	Put(batches iter.Seq[[][]byte])
	Take(tally Tally)
}

// Tally counts how often each message was done with, in the file that all processes share.
type Tally []uint32

// Mark adds to a count of one byte; counts stand in words that can be added to at once.
func (t Tally) Mark(number int) {
	atomic.AddUint32(&t[number/4], 1<<(8*(number%4)))
}

// Must ends the process unless it went well.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Check ends the process if there is an error.
func Check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// NumberOf is the number of a message.
func NumberOf(body []byte) int {
	return Must(strconv.Atoi(string(body[:digits])))
}

// batches are the share of a client.
func (t Task) batches(client int) iter.Seq[[][]byte] {
	start, end := t.Count*client/t.Of, t.Count*(client+1)/t.Of
	filler := strings.Repeat("x", t.Size-digits)
	return func(yield func([][]byte) bool) {
		for first := start; first < end; first += t.Batch {
			batch := make([][]byte, 0, t.Batch)
			for one := first; one < min(first+t.Batch, end); one++ {
				batch = append(batch, fmt.Appendf(make([]byte, 0, t.Size), "%0*d%s", digits, one, filler))
			}
			if !yield(batch) {
				return
			}
		}
	}
}

// Main does the task of the command line with clients that open makes.
func Main(open func(Task) Client) {
	log.SetFlags(0)
	var t Task
	Check(json.Unmarshal([]byte(os.Args[1]), &t))
	clients := []Client{}
	for range t.Clients {
		clients = append(clients, open(t))
	}
	var tally Tally
	if t.Role == "take" {
		file := Must(os.OpenFile(t.Tally, os.O_RDWR, 0))
		counts := Must(syscall.Mmap(int(file.Fd()), 0, t.Count, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))
		tally = unsafe.Slice((*uint32)(unsafe.Pointer(&counts[0])), (t.Count+3)/4) // a page is mapped whole
	}
	fmt.Println("ready")
	Must(os.ReadFile(t.Fifo)) // until it is closed by the one who opened it to write
	var group sync.WaitGroup
	for n, one := range clients {
		group.Go(func() {
			if t.Role == "put" {
				one.Put(t.batches(t.First + n))
			} else {
				one.Take(tally)
			}
		})
	}
	group.Wait()
	fmt.Println("done")
}
