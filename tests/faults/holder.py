"""A program that makes clients to be killed: for each line "ADDRESS QUEUE" on its input it forks one, which stands in
the queue's consumer line and keeps what it is granted. Each tells its process id when it holds something.

Forked, because a program of Python needs long to begin. gRPC is first used in the children.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import grpc

from headway.v1 import queue_service_pb2, queue_service_pb2_grpc


def hold(address: str, queue: str) -> None:
    """Stands, and tells when it is granted something. Never returns."""
    stub = queue_service_pb2_grpc.QueueServiceStub(grpc.insecure_channel(address))
    request = queue_service_pb2.WatchPositionRequest(queue=queue, stand=queue_service_pb2.Stand())
    for told in stub.WatchPosition(request):
        if told.HasField("granted"):
            os.write(1, f"{os.getpid()}\n".encode())


def main() -> None:
    """Until the end of its input; its children end with it."""
    parent = os.getpid()
    for line in sys.stdin:
        address, queue = line.split()
        if os.fork() == 0:
            threading.Thread(target=hold, args=(address, queue), daemon=True).start()
            while os.getppid() == parent:
                time.sleep(0.1)
            os._exit(0)


if __name__ == "__main__":
    main()
