module headway.dev/go/examples

go 1.24.0

require (
	go.opentelemetry.io/otel/trace v1.39.0
	google.golang.org/grpc v1.80.0
	headway.dev/go v0.1.0
	headway.dev/go/headwayotel v0.1.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.opentelemetry.io/otel v1.39.0 // indirect
	golang.org/x/net v0.49.0 // indirect
	golang.org/x/sync v0.19.0 // indirect
	golang.org/x/sys v0.40.0 // indirect
	golang.org/x/text v0.33.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260120221211-b8f7ae30c516 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)

replace (
	headway.dev/go => ../
	headway.dev/go/headwayotel => ../headwayotel
)
