// beanstalkd by a client of our own that pipelines, for there is none that does; the same modes as ../../beanstalkd.py.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"iter"
	"log"
	"net"
	"strconv"

	. "bench.local/drivers/driving"
)

const (
	priority, delaySeconds, runSeconds = 1, 0, 600
	bufferBytes                        = 1 << 16
)

type client struct {
	Task
	in  *bufio.Reader
	out *bufio.Writer
}

// open makes a connection. Tubes come and go by themselves.
func open(t Task) Client {
	connection := Must(net.Dial("tcp", t.Address))
	c := &client{t, bufio.NewReaderSize(connection, bufferBytes), bufio.NewWriterSize(connection, bufferBytes)}
	fmt.Fprintf(c.out, "use %s\r\nwatch %s\r\nignore default\r\n", t.Queue, t.Queue)
	for _, word := range []string{"USING", "WATCHING", "WATCHING"} {
		c.expect(word)
	}
	return c
}

// reply is the words of the next one, until something else is read. What was written goes out before it is waited for.
func (c *client) reply() [][]byte {
	if c.in.Buffered() == 0 {
		Check(c.out.Flush())
	}
	return bytes.Fields(Must(c.in.ReadSlice('\n')))
}

func (c *client) expect(word string) {
	if words := c.reply(); string(words[0]) != word {
		log.Fatalf("%s in place of %s", words, word)
	}
}

// Put writes some batches ahead of the replies.
func (c *client) Put(batches iter.Seq[[][]byte]) {
	unanswered := 0
	for batch := range batches {
		for ; unanswered > 0 && unanswered+len(batch) > c.Unconfirmed; unanswered-- {
			c.expect("INSERTED")
		}
		for _, body := range batch {
			fmt.Fprintf(c.out, "put %d %d %d %d\r\n%s\r\n", priority, delaySeconds, runSeconds, len(body), body)
		}
		unanswered += len(batch)
	}
	for ; unanswered > 0; unanswered-- {
		c.expect("INSERTED")
	}
}

// Take waits for one job. Each that comes is deleted at once, and asks for two more, if they are there, until a batch is
// asked for; when none was there it waits again. A job counts when its delete is answered.
func (c *client) Take(tally Tally) {
	var deleting []int // in the order of the answers
	asked := 0
	for {
		if asked == 0 {
			fmt.Fprint(c.out, "reserve\r\n")
			asked = 1
		}
		switch words := c.reply(); string(words[0]) {
		case "RESERVED":
			fmt.Fprintf(c.out, "delete %s\r\n", words[1])
			body := make([]byte, Must(strconv.Atoi(string(words[2])))+len("\r\n"))
			Must(io.ReadFull(c.in, body))
			deleting = append(deleting, NumberOf(body))
			asked--
			for range min(2, c.Batch-asked) {
				fmt.Fprint(c.out, "reserve-with-timeout 0\r\n")
				asked++
			}
		case "TIMED_OUT":
			asked--
		case "DELETED":
			tally.Mark(deleting[0])
			deleting = deleting[1:]
		default:
			log.Fatalf("%s", words)
		}
	}
}

func main() { Main(open) }
