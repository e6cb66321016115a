"""The core of the client: connect, errors, leases, workers and watches over the generated stubs, and no more.

It is usable alone, and the rest of `headway` is built on it.

    async with Connection() as service:
        await service.call(service.queues.Put, PutRequest(queue="mail", messages=[Message(payload=b"hello")]))
        async with lease(service, "mail") as held:
            ...
        await Worker(service, "mail", handle, concurrency=8).run()
        async for answer in watch(service, "mail", ["welcome-ada"]):
            ...
"""

from headway.core.connecting import Connection
from headway.core.error import HeadwayError, Violation, from_status
from headway.core.leasing import Lease
from headway.core.watching import watch
from headway.core.working import Worker

__all__ = ["Connection", "HeadwayError", "Lease", "Violation", "Worker", "from_status", "watch"]
