// Package headway is the Go client of Headway, the queue service that tells everyone where they stand.
//
// It is thin. Requests and answers are the generated messages of package headwaypb, and [Client.Queues] and
// [Client.Admin] are the generated stubs, over a connection that gives every call a deadline, repeats what is safe to
// repeat, and answers failures as [*Error]. What the package adds is a [Queue] to lease from, to work through and to
// watch:
//
//	client, err := headway.Connect(headway.Config{})
//	messages := []*headwaypb.Message{{Payload: []byte("Hello, Ada")}}
//	put, err := client.Queues.Put(ctx, &headwaypb.PutRequest{Queue: "mail", Messages: messages})
//	queue := client.Queue("mail")
//	err = queue.Work(ctx, send, headway.Options{Concurrency: 8})
//	for answer, err := range queue.Watch(ctx, []string{put.Results[0].Id}, headway.Options{}) { … }
//
// What the service promises to its callers is told in docs/protocol.md of the repository.
package headway

// Version is the version of the client, and of the schema it was made from.
const Version = "0.1.0"
