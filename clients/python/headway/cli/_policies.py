# ruff: noqa: PLR0917 - typer makes options of these arguments; nobody calls them by position
"""The commands that say how a queue behaves: create and update, with one option for each field of a policy."""

from datetime import timedelta
from typing import Annotated, Any, cast

import typer

from headway._client import Client
from headway._policy import PolicyFields
from headway.cli._app import app, perform
from headway.cli._arguments import MOST_COUNT, QueueName, parse_span
from headway.cli._output import Output


def _span(help_text: str, *names: str) -> Any:
    return typer.Option(*names, metavar="SPAN", parser=parse_span, help=help_text, rich_help_panel="Policy")


def _count(help_text: str, *names: str) -> Any:
    return typer.Option(*names, min=0, max=MOST_COUNT, help=help_text, rich_help_panel="Policy")


def _plain(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Policy")


_Bound = Annotated[int | None, _count("The most messages that may wait; 0: no bound.", "--bound")]
_Limit = Annotated[int | None, _count("The most leases at once; 0: no limit.", "--limit")]
_Lease = Annotated[timedelta | None, _span("How long a lease lasts; default 30s.", "--lease")]
_MaxAttempts = Annotated[int | None, _count("Failures until a message is dead; 0: no limit.", "--max-attempts")]
_MinBackoff = Annotated[timedelta | None, _span("Wait after the first failure.", "--min-backoff")]
_MaxBackoff = Annotated[timedelta | None, _span("The longest such wait.", "--max-backoff")]
_Multiplier = Annotated[float | None, _plain("From one wait to the next.", "--multiplier")]
_Jitter = Annotated[float | None, _plain("Randomness of a wait, 0 to 1.", "--jitter")]
_TimeToLive = Annotated[
    timedelta | None, _span("How long after its put a message expires; default: never.", "--time-to-live", "--ttl")
]
_DeadLetterExpired = Annotated[
    bool | None,
    _plain("Expired messages go to the dead, or are dropped.", "--dead-letter-expired/--no-dead-letter-expired"),
]
_PollBase = Annotated[timedelta | None, _span("Wait between polls of the first in line.", "--poll-base")]
_PollPerPosition = Annotated[timedelta | None, _span("What each place behind adds.", "--poll-per-position")]
_PollMax = Annotated[timedelta | None, _span("The longest wait between polls.", "--poll-max")]
_PollTolerance = Annotated[timedelta | None, _span("So much too early is in time.", "--poll-tolerance")]
_PollStrikes = Annotated[int | None, _count("Polls too early that cost the place.", "--poll-strikes")]
_PlaceGrace = Annotated[timedelta | None, _span("How long a lost place is kept.", "--place-grace")]
_Turns = Annotated[int | None, _count("Turns in a row of who keeps standing; 0: no limit.", "--turns")]
_DedupeWindow = Annotated[timedelta | None, _span("How long a done id counts.", "--dedupe-window")]
_Remember = Annotated[timedelta | None, _span("How long an outcome is remembered.", "--remember")]


def _given(**fields: Any) -> PolicyFields:
    """The fields that were said."""
    return cast("PolicyFields", {name: value for name, value in fields.items() if value is not None})


@app.command()
def create(
    context: typer.Context,
    queue: QueueName,
    bound: _Bound = None,
    limit: _Limit = None,
    lease: _Lease = None,
    max_attempts: _MaxAttempts = None,
    min_backoff: _MinBackoff = None,
    max_backoff: _MaxBackoff = None,
    multiplier: _Multiplier = None,
    jitter: _Jitter = None,
    time_to_live: _TimeToLive = None,
    dead_letter_expired: _DeadLetterExpired = None,
    poll_base: _PollBase = None,
    poll_per_position: _PollPerPosition = None,
    poll_max: _PollMax = None,
    poll_tolerance: _PollTolerance = None,
    poll_strikes: _PollStrikes = None,
    place_grace: _PlaceGrace = None,
    turns: _Turns = None,
    dedupe_window: _DedupeWindow = None,
    remember: _Remember = None,
) -> None:
    """Make a queue with a policy; the same again changes nothing."""
    fields = _given(
        bound=bound,
        limit=limit,
        lease=lease,
        max_attempts=max_attempts,
        min_backoff=min_backoff,
        max_backoff=max_backoff,
        multiplier=multiplier,
        jitter=jitter,
        time_to_live=time_to_live,
        dead_letter_expired=dead_letter_expired,
        poll_base=poll_base,
        poll_per_position=poll_per_position,
        poll_max=poll_max,
        poll_tolerance=poll_tolerance,
        poll_strikes=poll_strikes,
        place_grace=place_grace,
        turns=turns,
        dedupe_window=dedupe_window,
        remember=remember,
    )

    async def action(client: Client, output: Output) -> None:
        response = await client.queue(queue).create(**fields)
        if output.as_json:
            output.message(response)
        else:
            output.line(f"created {queue}" if response.created else f"{queue} stands already, with this policy")

    perform(context, action)


@app.command()
def update(
    context: typer.Context,
    queue: QueueName,
    bound: _Bound = None,
    limit: _Limit = None,
    lease: _Lease = None,
    max_attempts: _MaxAttempts = None,
    min_backoff: _MinBackoff = None,
    max_backoff: _MaxBackoff = None,
    multiplier: _Multiplier = None,
    jitter: _Jitter = None,
    time_to_live: _TimeToLive = None,
    dead_letter_expired: _DeadLetterExpired = None,
    poll_base: _PollBase = None,
    poll_per_position: _PollPerPosition = None,
    poll_max: _PollMax = None,
    poll_tolerance: _PollTolerance = None,
    poll_strikes: _PollStrikes = None,
    place_grace: _PlaceGrace = None,
    turns: _Turns = None,
    dedupe_window: _DedupeWindow = None,
    remember: _Remember = None,
    default: Annotated[
        list[str] | None, typer.Option("--default", metavar="FIELD", help="Give a field its default, as time-to-live.")
    ] = None,
) -> None:
    """Change what is said of a queue's policy, and leave the rest; at once, for messages that wait too."""
    fields = _given(
        bound=bound,
        limit=limit,
        lease=lease,
        max_attempts=max_attempts,
        min_backoff=min_backoff,
        max_backoff=max_backoff,
        multiplier=multiplier,
        jitter=jitter,
        time_to_live=time_to_live,
        dead_letter_expired=dead_letter_expired,
        poll_base=poll_base,
        poll_per_position=poll_per_position,
        poll_max=poll_max,
        poll_tolerance=poll_tolerance,
        poll_strikes=poll_strikes,
        place_grace=place_grace,
        turns=turns,
        dedupe_window=dedupe_window,
        remember=remember,
    )
    fields = _with_defaults(fields, [name.replace("-", "_") for name in default or ()])
    if not fields:
        raise typer.BadParameter("say what to change")

    async def action(client: Client, output: Output) -> None:
        state = await client.queue(queue).update(**fields)
        if output.as_json:
            output.message(state)
        else:
            output.line(f"changed {queue}: {', '.join(fields)}")

    perform(context, action)


def _with_defaults(fields: PolicyFields, names: list[str]) -> PolicyFields:
    """The fields, and None for each that shall have its default. Raises typer.BadParameter."""
    for name in names:
        if name not in PolicyFields.__annotations__:
            raise typer.BadParameter(f"a policy has no field {name!r}", param_hint="--default")
        if name in fields:
            raise typer.BadParameter(f"{name} has a value already", param_hint="--default")
    return cast("PolicyFields", {**fields, **dict.fromkeys(names)})
