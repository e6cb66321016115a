import asyncio
from datetime import timedelta

import headway


async def main() -> None:
    async with headway.connect() as client:  # HEADWAY_ADDRESS, else 127.0.0.1:7420
        queue = client.queue("mail")
        await queue.create(bound=1000, max_attempts=5)
        result = await queue.put(b"Hello, Ada", id="welcome-ada", wait=timedelta(seconds=5))
        print("position", result.position)

        async with queue.lease(wait=timedelta(seconds=5)) as lease:
            if lease is not None:
                print(lease.payload)  # acked at the end of the block


asyncio.run(main())
