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
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func draw(ctx context.Context, lease *headway.Lease) ([]byte, error) {
	if err := lease.Progress(ctx, 0.5, "half of it"); err != nil {
		return nil, err
	}
	time.Sleep(500 * time.Millisecond) // the other half
	return []byte("<svg/>"), nil
}

func run(ctx context.Context) error {
	client, err := headway.Connect(headway.Config{})
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Queues.Create(ctx, &headwaypb.CreateRequest{Queue: "go-pictures"}); err != nil {
		return err
	}
	messages := []*headwaypb.Message{{Payload: []byte("a circle")}}
	put, err := client.Queues.Put(ctx, &headwaypb.PutRequest{Queue: "go-pictures", Messages: messages})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	queue := client.Queue("go-pictures")
	for answer, err := range queue.Watch(ctx, []string{put.Results[0].Id}, headway.Options{}) {
		if err != nil {
			return err
		}
		switch {
		case answer.GetPosition() != nil:
			fmt.Println("you are number", answer.GetPosition().Position)
			go queue.Work(ctx, draw, headway.Options{}) // elsewhere, as a rule
		case answer.GetLeased().GetProgress() != nil:
			fmt.Println("worked on:", answer.GetLeased().Progress.Note)
		case answer.GetFinished() != nil:
			fmt.Println("it is done:", string(answer.GetFinished().Result))
		}
	}
	return nil
}
