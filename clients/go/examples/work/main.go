package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync/atomic"

	"headway.dev/go"
	"headway.dev/go/headwaypb"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	client, err := headway.Connect(headway.Config{})
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Queues.Create(ctx, &headwaypb.CreateRequest{Queue: "go-work"}); err != nil {
		return err
	}
	messages := []*headwaypb.Message{{Payload: []byte("one")}, {Payload: []byte("two")}, {Payload: []byte("three")}}
	if _, err := client.Queues.Put(ctx, &headwaypb.PutRequest{Queue: "go-work", Messages: messages}); err != nil {
		return err
	}
	// Work goes on until the queue is closed and drained, or Ctrl-C: then it finishes what it holds.
	if _, err := client.Queues.Close(ctx, &headwaypb.CloseRequest{Queue: "go-work"}); err != nil {
		return err
	}
	interrupt, cancel := signal.NotifyContext(ctx, os.Interrupt)
	defer cancel()

	var handled atomic.Int32
	shout := func(ctx context.Context, lease *headway.Lease) ([]byte, error) {
		handled.Add(1)
		return bytes.ToUpper(lease.Message.Payload), nil // kept as the message's result
	}
	options := headway.Options{Concurrency: 4, Stop: interrupt}
	if err := client.Queue("go-work").Work(ctx, shout, options); err != nil {
		return err
	}
	fmt.Println("handled", handled.Load())
	_, err = client.Queues.Delete(ctx, &headwaypb.DeleteRequest{Queue: "go-work"})
	return err
}
