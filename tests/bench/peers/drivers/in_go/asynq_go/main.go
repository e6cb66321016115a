// asynq: a Go library over Redis.
package main

import (
	"context"
	"iter"

	"github.com/hibiken/asynq"

	. "bench.local/drivers/driving"
)

const (
	kind     = "job"
	atATime  = 100
	attempts = 3
)

type client struct {
	Task
	redis asynq.RedisConnOpt
	queue *asynq.Client
}

// open makes a connection; queues come by themselves.
func open(t Task) Client {
	redis := Must(asynq.ParseRedisURI(t.Address))
	queue := asynq.NewClient(redis)
	Check(queue.Ping())
	return &client{t, redis, queue}
}

// Put enqueues one by one: it has no other way.
func (c *client) Put(batches iter.Seq[[][]byte]) {
	for batch := range batches {
		for _, body := range batch {
			Must(c.queue.Enqueue(asynq.NewTask(kind, body), asynq.Queue(c.Queue), asynq.MaxRetry(attempts)))
		}
	}
}

// Take runs one worker for each client, with so many jobs at a time together. A job counts when it is done, a moment
// before that is written.
func (c *client) Take(tally Tally) {
	worker := asynq.NewServer(c.redis, asynq.Config{
		Concurrency: max(1, atATime/c.Clients),
		Queues:      map[string]int{c.Queue: 1},
		LogLevel:    asynq.WarnLevel,
	})
	Check(worker.Start(asynq.HandlerFunc(func(_ context.Context, job *asynq.Task) error {
		tally.Mark(NumberOf(job.Payload()))
		return nil
	})))
	select {}
}

func main() { Main(open) }
