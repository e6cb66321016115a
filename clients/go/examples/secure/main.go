package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"headway.dev/go"
	"headway.dev/go/headwaypb"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	authorities, err := os.ReadFile(os.Getenv("HEADWAY_CA"))
	if err != nil {
		return err
	}
	trusted := &tls.Config{RootCAs: x509.NewCertPool()} // without RootCAs: whom this machine trusts
	trusted.RootCAs.AppendCertsFromPEM(authorities)
	shown, err := tls.LoadX509KeyPair(os.Getenv("HEADWAY_CERT"), os.Getenv("HEADWAY_KEY")) // if the service wants one
	if err != nil {
		return err
	}
	trusted.Certificates = []tls.Certificate{shown}
	token := headway.Token(func(context.Context) (string, error) { // asked for each call: a token may expire
		text, err := os.ReadFile(os.Getenv("HEADWAY_TOKEN_FILE"))
		return string(text), err
	})

	client, err := headway.Connect(headway.Config{Dial: []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(trusted)),
		grpc.WithPerRPCCredentials(token),
	}})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := client.Queues.Create(ctx, &headwaypb.CreateRequest{Queue: "go-secure"}); err != nil {
		return err
	}
	fmt.Println("created over TLS")
	return nil
}
