import asyncio
from contextlib import aclosing

from headway.core import Connection, Lease, Worker, watch
from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2 import CreateRequest, Outcome, PutRequest


async def send(lease: Lease) -> bytes:
    print(lease.delivery.message.payload)  # the lease is kept alive until this returns, and acked then
    return b"sent"


async def main() -> None:
    async with Connection() as service:  # HEADWAY_ADDRESS, else 127.0.0.1:7420
        await service.call(service.queues.Create, CreateRequest(queue="core"))
        message = Message(id="welcome-ada", payload=b"Hello, Ada")
        await service.call(service.queues.Put, PutRequest(queue="core", messages=[message]))

        async with aclosing(watch(service, "core", ["welcome-ada"])) as answers:  # over as many streams as it takes
            place = (await anext(answers)).position
            print("number", place.position, "of", place.length)
            stop = asyncio.Event()
            working = asyncio.create_task(Worker(service, "core", send, concurrency=8, stop=stop).run())
            async for answer in answers:
                if answer.HasField("finished"):
                    print(Outcome.Name(answer.finished.outcome), answer.finished.result)
        stop.set()  # it finishes what it holds
        await working


asyncio.run(main())
