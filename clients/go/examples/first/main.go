package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"headway.dev/go"
	"headway.dev/go/headwaypb"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client, err := headway.Connect(headway.Config{}) // HEADWAY_ADDRESS, else 127.0.0.1:7420
	if err != nil {
		return err
	}
	defer client.Close()

	policy := &headwaypb.Policy{Bound: 1000}
	if _, err := client.Queues.Create(ctx, &headwaypb.CreateRequest{Queue: "go-mail", Policy: policy}); err != nil {
		return err
	}
	messages := []*headwaypb.Message{{Payload: []byte("Hello, Ada")}}
	put, err := client.Queues.Put(ctx, &headwaypb.PutRequest{Queue: "go-mail", Messages: messages})
	if err != nil {
		return err
	}
	fmt.Println("position", put.Results[0].Position)

	show := func(ctx context.Context, lease *headway.Lease) ([]byte, error) {
		fmt.Println(string(lease.Message.Payload))
		return nil, nil // acks it
	}
	_, err = client.Queue("go-mail").Lease(ctx, show, headway.Options{Wait: 5 * time.Second})
	return err
}
