"""A server with the interface of grpc.aio's, on the parts of grpcio that its threaded server is made of.

grpc.aio wakes the event loop four times for a call of one reply: that it has come, that its request has, that the
answer has gone, that it is over. Here it hears of what it has to act on. Why, and what that brings: docs/design.md, The
server.
"""
