"""What it costs to know callers, in this process and around behaviour that does nothing. Part of `make bench`. Prints a
table; judges nothing.

Of a call whose caller is known: finding it by its token, and a Put through its view of the engine. Of a token that is
seen for the first time: checking it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.rig import each_us
from bench.tables import no_arguments
from headwayd.access.access import Access
from headwayd.access.jwks import KeyFile
from headwayd.access.signed import SignedRules, SignedTokens
from headwayd.domain.access import Identity, Quotas, Used
from headwayd.domain.limits import Limits
from headwayd.domain.model import NewMessage, PutOrder
from headwayd.engine.guarded import GuardedEngine
from headwayd.engine.quotas import Quota
from headwayd.rpc.guard import Guard, Guarding
from security.callers import Caller, bearer, write_callers
from security.issuer import AUDIENCE, ISSUER, SigningKey, key_set

TIMES, CHECKS = 20_000, 200
CALLERS = 100  # in the file; the last one calls
ORDER = PutOrder("jobs", [NewMessage(b"x" * 100)])


class _Idle:
    """An engine that does nothing."""

    limits = Limits()

    async def put(self, order: PutOrder, *, budget_s: float) -> list[Any]:
        return []


class _Context:
    """A call as gRPC's Python client makes it."""

    def __init__(self, token: str) -> None:
        self._metadata = (("user-agent", "grpc-python-asyncio/1.85.1 grpc-c/53.0.0 (linux; chttp2)"), *bearer(token))

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


async def _look(with_bytes: bool) -> Used:
    return Used()


def _view(idle: _Idle, caller: Caller, identity: Identity, quotas: Quotas) -> GuardedEngine:
    assert caller.namespace == identity.namespace
    quota = Quota(_look)
    quota.limits = quotas
    return GuardedEngine(cast(Any, idle), identity, quota)


async def main() -> None:
    """Prints the table."""
    callers = [Caller(roles=("producer",), namespace="team") for _ in range(CALLERS)]
    keys = [SigningKey(name, name) for name in ("ES256", "RS256", "EdDSA")]
    with tempfile.TemporaryDirectory(prefix="hw-") as name:
        folder = Path(name)
        file = write_callers(folder / "callers.toml", callers)
        (folder / "keys.json").write_text(key_set(*keys))
        rules = SignedRules(
            issuer=ISSUER, audience=AUDIENCE, algorithms=("ES256", "RS256", "EdDSA"), roles_claim="roles"
        )
        access = Access(file=file, signed=SignedTokens(rules, KeyFile(folder / "keys.json")))
    guard = Guard(
        Guarding(access=access, engine_for=cast(Any, lambda *_: _Idle()), quota_of=lambda _: Quota(_look)),
        lambda _engine, _namespace: {},
    )
    idle, caller = _Idle(), callers[-1]
    context = cast(Any, _Context(caller.token))
    identity = await access.identify_token(caller.token)
    print("| knowing callers | cost |\n|---|---|")
    print(f"| a call of a known caller: who it is | {await each_us(lambda: guard.caller(context), TIMES):.2f} µs |")
    bare_us = await each_us(lambda: idle.put(ORDER, budget_s=1.0), TIMES)
    for kind, quotas in (("", Quotas()), (", with quotas", Quotas(messages=10**12, bytes=10**15))):
        view = _view(idle, caller, identity, quotas)
        added = await each_us(lambda: view.put(ORDER, budget_s=1.0), TIMES) - bare_us  # noqa: B023
        print(f"| its Put: roles and namespace{kind} | {added:.2f} µs |")
    seen = await each_us(lambda: access.identify_token(caller.token), CHECKS)
    print(f"| a token seen first, one of {CALLERS} of the file | {seen:.0f} µs |")
    for key in keys:
        token = key.token()
        seen = await each_us(lambda: access.identify_token(token), CHECKS)  # noqa: B023
        print(f"| a token seen first, signed with {key.algorithm} | {seen:.0f} µs |")


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    uvloop.run(main())
