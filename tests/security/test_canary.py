"""Payloads, headers and tokens are told to nobody but their owners: not to the log, at any level, nor in errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import redis

from harness import ServiceProcess
from headway.v1 import message_pb2
from security.callers import TEAM, Caller, bearer, line_of, write_callers
from security.issuer import AUDIENCE, ISSUER, SigningKey, key_server, key_set
from security.test_rights import WAYS, reason_of

pytestmark = pytest.mark.any_store

PAYLOAD, HEADER, HEADER_KEY, RESULT = "canary-payload", "canary-header", "canary-key", "canary-result"


def canary() -> message_pb2.Message:
    return message_pb2.Message(payload=PAYLOAD.encode(), headers={HEADER_KEY: HEADER})


async def try_everything(channel: grpc.aio.Channel, caller: Caller, name: str) -> str:
    """Does what it can, sound and unsound, and tells every error it met."""
    said = []
    line = line_of(channel, caller, name)
    too_large = message_pb2.Message(payload=PAYLOAD.encode() * 100_000, headers={HEADER_KEY: HEADER * 1_000})
    given = message_pb2.Message(payload=PAYLOAD.encode(), id="given", headers={HEADER_KEY: HEADER})
    for step in (
        lambda: line.create(bound=5),
        lambda: line.put(canary(), canary(), given),
        lambda: line.put(given),
        lambda: line.put(too_large),
        lambda: line.put(*[canary()] * 10),
        lambda: line.get(2),
        lambda: line.peek(5),
        lambda: line.ack("canary-made-up", result=RESULT.encode()),
        lambda: line.ack("", result=RESULT.encode() * 1_000),
        lambda: line.delay("canary-made-up", reason=PAYLOAD * 1_000),
    ):
        try:
            await step()
        except grpc.aio.AioRpcError as error:
            said.append(f"{error.details()} {error.trailing_metadata()} {error.debug_error_string()}")
    return "\n".join(said)


@pytest.mark.parametrize("log_format", ["console", "json"])
async def test_no_canary_is_in_the_log_or_in_an_error(  # noqa: PLR0917 - fixtures
    start: Callable[..., ServiceProcess],
    redis_client: redis.Redis,
    connect: Callable[[str], grpc.aio.Channel],
    short_dir: Path,
    name: str,
    log_format: str,
) -> None:
    key = SigningKey()
    keys = short_dir / "keys.json"
    await asyncio.to_thread(keys.write_text, key_set(key))
    signed = Caller(roles=("admin",), token=key.token())
    unsound = [key.token(exp=1), SigningKey().token(), "canary-unknown-token"]
    file = write_callers(short_dir / "callers.toml", TEAM.values())
    service = start(
        HEADWAY_AUTH_FILE=str(file), HEADWAY_JWT_JWKS=str(keys),
        HEADWAY_JWT_ISSUER=ISSUER, HEADWAY_JWT_AUDIENCE=AUDIENCE, HEADWAY_LOG_LEVEL="debug",
        HEADWAY_LOG_FORMAT=log_format, PRESSURE_PREFIX=f"c-{name}",
    )  # fmt: skip
    said = ""
    async with connect(service.address) as channel:
        for caller in (*TEAM.values(), signed):
            said += await try_everything(channel, caller, name)
        for token in unsound:
            for way in WAYS:
                said += await reason_of(channel, way, name, bearer(token))
        # A defect in sight of payloads: the store's keys are of the wrong kind.
        redis_client.set(f"c-{name}@team:{name}-broken:bound", "0")
        redis_client.set(f"c-{name}@team:{name}-broken:x:meta", "text")
        said += await try_everything(channel, TEAM["admin"], f"{name}-broken")
    service.stop()
    told = {"log": service.log.read_text(), "errors": said}
    assert "incident" in told["log"]
    assert HEADER_KEY not in told["log"]  # an error tells its caller which header is wrong
    secrets = [PAYLOAD, HEADER, RESULT, signed.token, *unsound, *(each.token for each in TEAM.values())]
    secrets += [part for token in (signed.token, *unsound[:2]) for part in token.split(".")[1:]]
    for where, text in told.items():
        for secret in secrets:
            assert secret not in text, (where, secret)


@pytest.mark.parametrize("level", ["info", "debug"])
async def test_no_key_of_the_address_of_keys_is_in_the_log(
    start: Callable[..., ServiceProcess], connect: Callable[[str], grpc.aio.Channel], name: str, level: str
) -> None:
    key = SigningKey()
    with key_server(key_set(key), cookie="session=canary-cookie") as keys:
        service = start(
            HEADWAY_JWT_JWKS=f"{keys.url}?key=canary-key", HEADWAY_JWT_ISSUER=ISSUER, HEADWAY_JWT_AUDIENCE=AUDIENCE,
            HEADWAY_LOG_LEVEL=level, PRESSURE_PREFIX=f"c-{name}",
        )  # fmt: skip
        async with connect(service.address) as channel:
            await line_of(channel, Caller(roles=("admin",), token=key.token()), name).create()  # so it has its keys
        service.stop()
        assert keys.asked
    assert "canary" not in service.log.read_text()
