"""The gRPC edge: requests become orders to the engine, what it answers becomes replies, its errors become statuses."""
