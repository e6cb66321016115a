package main

import (
	"context"
	"errors"
	"fmt"
	"log"

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
	policy := &headwaypb.Policy{Bound: 1}
	if _, err := client.Queues.Create(ctx, &headwaypb.CreateRequest{Queue: "go-narrow", Policy: policy}); err != nil {
		return err
	}
	defer client.Queues.Delete(ctx, &headwaypb.DeleteRequest{Queue: "go-narrow"})

	messages := []*headwaypb.Message{{Payload: []byte("fits")}, {Payload: []byte("does not")}}
	put, err := client.Queues.Put(ctx, &headwaypb.PutRequest{Queue: "go-narrow", Messages: messages})
	if err != nil {
		return err
	}
	for i, result := range put.Results {
		if headway.Is(headway.ErrorOf(result.Error), headwaypb.ErrorReason_ERROR_REASON_QUEUE_FULL) {
			fmt.Printf("no room for %q\n", messages[i].Payload)
		}
	}

	_, err = client.Queues.Put(ctx, &headwaypb.PutRequest{Queue: "go-narrow", Messages: messages[1:]})
	var failed *headway.Error
	if errors.As(err, &failed) {
		fmt.Println(failed.Code, failed.ReasonName(), failed.RetryAfter, failed.OutcomeUnknown())
	}
	return nil
}
