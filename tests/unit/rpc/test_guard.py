"""Callers are remembered by what they have shown, however they wrote it down."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import time
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwayd.domain.access import NO_QUOTAS, Identity, Quotas, Used
from headwayd.domain.errors import HeadwayError, PermissionDenied, QuotaExceeded, Unauthenticated
from headwayd.engine.budgets import Budget
from headwayd.engine.quotas import Quota
from headwayd.rpc.guard import Context, Guard, Guarding


class FakeAccess:
    """Knows everybody, and counts whom it was asked for."""

    takes_certificates = True

    def __init__(self) -> None:
        self.asked: list[str | bytes] = []
        self.expires_at: float | None = None
        self.error: HeadwayError | None = None
        self.takes_s = 0.0
        self.version = 0
        self.namespace = "team"
        self.limits = NO_QUOTAS

    def quotas(self, _namespace: str) -> Quotas:
        return self.limits

    async def identify_token(self, token: str) -> Identity:
        self.asked.append(token)
        time.sleep(self.takes_s)  # noqa: ASYNC251 - as a signature takes it
        if self.error is not None:
            raise self.error
        return Identity(name=token[:9], namespace=self.namespace, grants=(), expires_at=self.expires_at)

    def identify_certificate(self, pem: bytes) -> Identity:
        self.asked.append(pem)
        return Identity(name="certified", namespace="team", grants=())


@pytest.fixture
def access() -> FakeAccess:
    return FakeAccess()


@pytest.fixture
def guard(access: FakeAccess) -> Guard:
    async def look(_with_bytes: bool) -> Used:
        return Used()

    guarding = Guarding(access=access, engine_for=lambda *_: cast(Any, None), quota_of=lambda _: Quota(look))
    return Guard(guarding, lambda *_: {})


def call_with(*authorization: str, certificate: bytes = b"") -> Context:
    metadata = [("authorization", one) for one in authorization]
    shown = {"x509_pem_cert": [certificate]} if certificate else {}
    return cast(Context, SimpleNamespace(invocation_metadata=lambda: metadata, auth_context=lambda: shown))


async def test_a_token_is_one_however_it_is_written_down(guard: Guard, access: FakeAccess) -> None:
    spellings = itertools.product(("Bearer", "bearer", "BEARER"), (" ", "   ", " \t", " " * 9_000), ("", " ", "\t \t"))
    callers = [await guard.caller(call_with(f"{scheme}{before}tok{after}")) for scheme, before, after in spellings]
    assert access.asked == ["tok"]
    assert all(caller is callers[0] for caller in callers)


async def test_of_long_tokens_little_is_remembered(guard: Guard, access: FakeAccess) -> None:
    """Of a signed one its holder may make many: what does not belong into base64 is not looked at."""
    tokens = ["a" * size for size in (127, 128, 129, 8_000)]
    for token in tokens * 2:
        assert (await guard.caller(call_with(f"Bearer {token}"))).identity.name == token[:9]
    assert access.asked == tokens
    assert max(map(len, guard._callers)) == 128


async def test_who_is_known_by_many_spellings_of_a_token_is_one_caller(guard: Guard) -> None:
    callers = [await guard.caller(call_with(f"Bearer one-token{'~' * number}")) for number in range(200)]
    assert all(caller is callers[0] for caller in callers)
    assert await guard.caller(call_with("Bearer another")) is not callers[0]


async def test_who_has_expired_is_remembered_no_longer(guard: Guard, access: FakeAccess) -> None:
    access.expires_at = time.time() + 60
    await guard.caller(call_with("Bearer lasts"))
    access.expires_at = time.time() - 1
    gone = weakref.ref(await guard.caller(call_with("Bearer expired")))
    await guard.look_at_running()
    gc.collect()
    assert gone() is None
    await guard.caller(call_with("Bearer lasts"))
    assert access.asked == ["lasts", "expired"]


async def test_what_is_counted_of_a_namespace_is_forgotten_when_nobody_is_known_of_it_and_nothing_was_asked_lately(
    guard: Guard, access: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed tokens may name ever more of them."""
    quotas = []
    for number in range(100):
        access.namespace, access.expires_at = f"n{number}", time.time() - 1
        quotas.append(weakref.ref((await guard.caller(call_with(f"Bearer {number}"))).quota))
    access.expires_at = None
    access.namespace = "stays"
    quotas.append(weakref.ref((await guard.caller(call_with("Bearer stays"))).quota))
    gc.collect()
    await guard.look_at_running()
    assert None not in [quota() for quota in quotas]
    monkeypatch.setattr("headwayd.engine.quotas._IDLE_AFTER_S", -1.0)
    await guard.look_at_running()
    gc.collect()
    assert [quota() for quota in quotas[:-1]] == [None] * 100
    assert quotas[-1]() is not None


async def test_what_is_counted_is_not_forgotten_before_the_store_may_be_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def look(_with_bytes: bool) -> Used:
        return Used(queues=frozenset(), messages=0, bytes=0, leases=0)

    monkeypatch.setattr("headwayd.engine.quotas._IDLE_AFTER_S", -1.0)
    monkeypatch.setattr("headwayd.engine.quotas._LOOK_EVERY_S", 3_600.0)
    quota = Quota(look)
    quota.limits = Quotas(messages=1)
    assert quota.is_idle
    await quota.check_put(1, lambda: 0, Budget(60))
    await asyncio.sleep(0)  # the look is noted as ended
    assert not quota.is_idle
    monkeypatch.setattr(quota, "_look_again_at", 0.0)
    assert quota.is_idle


async def test_who_comes_with_ever_new_tokens_is_let_in_no_more_often(guard: Guard, access: FakeAccess) -> None:
    access.limits = Quotas(calls_per_second=1)
    access.expires_at = time.time() - 1

    async def come() -> None:
        for number in range(20):
            await guard.caller(call_with(f"Bearer {number}"))
            gc.collect()
            await guard.look_at_running()

    with pytest.raises(QuotaExceeded):
        await come()


async def test_who_has_expired_is_asked_for_again_at_once(guard: Guard, access: FakeAccess) -> None:
    access.expires_at = time.time() - 1
    for _ in range(2):
        await guard.caller(call_with("Bearer expired"))
    assert access.asked == ["expired"] * 2


async def test_certificates_and_tokens_are_told_apart(guard: Guard, access: FakeAccess) -> None:
    for _ in range(2):
        assert (await guard.caller(call_with("Bearer tok", certificate=b"tok"))).identity.name == "tok"
        assert (await guard.caller(call_with(certificate=b"tok"))).identity.name == "certified"
    assert access.asked == ["tok", b"tok"]


@pytest.mark.parametrize("authorization", ["", "tok", "Bearer", "Bearer ", "Bearer  \t", "Basic tok", "Bearer\ttok"])
async def test_what_is_no_bearer_token_is_refused(guard: Guard, access: FakeAccess, authorization: str) -> None:
    with pytest.raises(Unauthenticated):
        await guard.caller(call_with(authorization))
    assert access.asked == []


class Running:
    """A stream, and what has ended it."""

    def __init__(self) -> None:
        self.ended_by: list[HeadwayError] = []

    def end(self, why: HeadwayError) -> None:
        self.ended_by.append(why)


@contextlib.asynccontextmanager
async def running(guard: Guard, *tokens: str) -> AsyncIterator[list[Running]]:
    """A stream of each."""
    with contextlib.ExitStack() as stack:
        streams = [Running() for _ in tokens]
        for stream, token in zip(streams, tokens, strict=True):
            context = call_with(f"Bearer {token}")
            stack.enter_context(guard.watching(stream, context, await guard.caller(context)))
        yield streams


async def test_who_runs_is_looked_at_anew_only_after_a_change_however_many_are_known(
    guard: Guard, access: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwayd.rpc.guard._MOST_KNOWN", 5)
    tokens = [f"token-{number}" for number in range(20)]
    async with running(guard, *tokens):
        await guard.look_at_running()
        access.asked.clear()
        await guard.look_at_running()
        assert access.asked == []
        access.version += 1
        await guard.look_at_running()
        assert access.asked == tokens


async def test_who_runs_is_ended_when_its_credentials_have_come_to_mean_another(
    guard: Guard, access: FakeAccess
) -> None:
    async with running(guard, "one", "two") as streams:
        access.expires_at = time.time() + 60
        await guard.look_at_running()
        assert [stream.ended_by for stream in streams] == [[], []]  # nothing says yet that there was a change
        access.version += 1
        await guard.look_at_running()
        assert [type(why) for stream in streams for why in stream.ended_by] == [PermissionDenied] * 2


async def test_who_runs_is_ended_when_its_credentials_expire(
    guard: Guard, access: FakeAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    access.expires_at = expires_at = time.time() + 60
    async with running(guard, "lasts") as [stream]:
        access.error = Unauthenticated("the token has expired")
        await guard.look_at_running()
        assert stream.ended_by == []
        monkeypatch.setattr("headwayd.rpc.guard.time", SimpleNamespace(time=lambda: expires_at))
        await guard.look_at_running()
        assert stream.ended_by == [access.error]


async def test_others_have_their_turns_while_all_who_run_are_looked_at(guard: Guard, access: FakeAccess) -> None:
    async with running(guard, *(f"token-{number}" for number in range(40))):
        access.version += 1
        access.takes_s = 0.002
        look = asyncio.ensure_future(guard.look_at_running())
        turns = 0
        while not look.done():
            turns += 1
            await asyncio.sleep(0)
        await look
    assert turns >= 4


async def test_of_many_who_may_not_any_more_some_end_in_each_turn_of_the_loop(guard: Guard, access: FakeAccess) -> None:
    async with running(guard, *(f"token-{number}" for number in range(500))) as streams:
        access.version += 1
        access.error = Unauthenticated("they are taken back")
        look = asyncio.ensure_future(guard.look_at_running())
        most = before = 0
        while not look.done():
            await asyncio.sleep(0)
            ended = sum(map(len, (stream.ended_by for stream in streams)))
            most, before = max(most, ended - before), ended
        await look
    assert before == 500
    assert most <= 20
