import asyncio
import os
from pathlib import Path

import grpc

import headway


def token() -> str:
    """Asked for each call and stream: a token may expire."""
    return Path(os.environ["HEADWAY_TOKEN_FILE"]).read_text().strip()


authorities, key, cert = (Path(os.environ[f"HEADWAY_{name}"]).read_bytes() for name in ("CA", "KEY", "CERT"))
# The certificate is for services that want one; without authorities: those that gRPC brings along.
credentials = grpc.ssl_channel_credentials(authorities, key, cert)


async def main() -> None:
    async with headway.connect(credentials=credentials, token=token) as client:
        await client.queue("python-secure").create()
        print("created over TLS")


asyncio.run(main())
