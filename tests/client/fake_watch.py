# ruff: noqa: N802 - the methods are named after the RPCs
"""The watchers' part of the in-memory service: places of messages, the consumer line, a queue's numbers."""

import itertools
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc

from client.fake_admin import FakeAdmin
from client.fake_core import Failure, FakeQueue
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Eta, Settled

CUT = Failure(code=grpc.StatusCode.UNAVAILABLE)


class FakeWatch(FakeAdmin):
    """WatchPosition and WatchQueue. `break_streams` cuts those under way; `plays` are answers to give instead, one list
    for each stream, which is cut behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.plays: list[Sequence[pb.WatchPositionResponse]] = []
        self.live_streams = 0
        self.clock_back = timedelta(0)  # by so much the store's clock is behind ours
        self.keeps_leases = False  # the end of a stream leaves its leases as they are
        self._breaks = 0
        self._leases = itertools.count(1)
        self._places = itertools.count(1)

    async def break_streams(self) -> None:
        """Cuts every stream that is under way."""
        self._breaks += 1
        await self.notify()

    async def bury(self, name: str, message_id: str) -> None:
        """Lets a message die, wherever it is."""
        await self.finish(name, message_id, "DEAD")

    async def finish(self, name: str, message_id: str, outcome: str) -> None:
        """Ends a message somehow."""
        queue = self.queues[name]
        found, token = queue.find(message_id), queue.lease_of(message_id)
        if found:
            found[0].remove(found[1])
        if token:
            del queue.leased[token]
            queue.ended[token] = Settled.SETTLED_GONE
        queue.outcomes[message_id] = outcome
        await self.notify()

    async def WatchPosition(
        self, request: pb.WatchPositionRequest, context: Any
    ) -> AsyncIterator[pb.WatchPositionResponse]:
        failure = await self.begin("WatchPosition", request, context)
        if failure is not None and failure.is_silent:
            await self.end(context, failure)
        if self.plays:
            for each in self.plays.pop(0):
                yield each
            await self.abort(context, CUT)
        queue = await self.find(request.queue, context)
        events = self._stand(queue, request.stand, context)
        if request.WhichOneof("subject") == "messages":
            events = self._watch(queue, request.messages, context)
        elif request.WhichOneof("subject") == "blocked":
            events = self._blocked(queue, request.blocked, context)
        self.live_streams += 1
        try:
            sequence = 0
            async for event in events:
                sequence += 1
                event.sequence = sequence
                if not event.HasField("finished") or event.finished.outcome:
                    event.as_of.FromDatetime(datetime.now(UTC) - self.clock_back)
                yield event
                await self.end(context, failure)
        finally:
            self.live_streams -= 1
            await events.aclose()
            await self.notify()

    async def _watch(self, queue: FakeQueue, asked: pb.MessageIds, context: Any) -> Any:
        breaks = self._breaks
        told: dict[str, pb.WatchPositionResponse | None] = dict.fromkeys(asked.ids)
        try:
            while told:
                for message_id, before in list(told.items()):
                    now = self._where(queue, message_id)
                    if before is not None and 0 < before.position.position < now.position.position:
                        now.position.moved_back = True
                    if before is None or _differs(now, before):
                        told[message_id] = now
                        yield pb.WatchPositionResponse.FromString(now.SerializeToString())
                    if now.HasField("finished"):
                        del told[message_id]
                await self.wait_for(
                    lambda: (
                        self._breaks > breaks
                        or any(before and _differs(self._where(queue, i), before) for i, before in told.items())
                        or not told
                    )
                )
                if self._breaks > breaks:
                    await self.abort(context, CUT)
        finally:
            for message_id in told if asked.attended else ():
                if queue.find(message_id):
                    await self.finish(queue.name, message_id, "WITHDRAWN")

    async def _blocked(self, queue: FakeQueue, asked: pb.Blocked, context: Any) -> Any:
        breaks = self._breaks
        yield pb.WatchPositionResponse(position=pb.Position(producer=asked.producer))  # nobody waits for room here
        await self.wait_for(lambda: self._breaks > breaks or self.queues.get(queue.name) is not queue)
        if self._breaks > breaks:
            await self.abort(context, CUT)
        yield pb.WatchPositionResponse(finished=pb.Finished(outcome=pb.OUTCOME_DELETED))

    def _where(self, queue: FakeQueue, message_id: str) -> pb.WatchPositionResponse:
        told = pb.WatchPositionResponse()
        found, token = queue.find(message_id), queue.lease_of(message_id)
        if self.queues.get(queue.name) is not queue:
            told.finished.CopyFrom(pb.Finished(id=message_id, outcome=pb.OUTCOME_DELETED))
        elif found:
            place = pb.Position(id=message_id, length=len(queue.line), limit=queue.policy.limit, eta=_eta(queue))
            is_waiting = found[0] is queue.line
            place.poll_min.FromSeconds(1)
            place.poll_max.FromSeconds(9)
            place.state = pb.STATE_WAITING if is_waiting else pb.STATE_DELAYED
            place.position = queue.line.index(found[1]) + 1 if is_waiting else 0
            told.position.CopyFrom(place)
        elif token:
            held = queue.leased[token]
            told.leased.CopyFrom(pb.Leased(id=message_id, attempt=held.attempt, progress=held.progress))
        else:
            name = queue.outcomes.get(message_id, "UNSPECIFIED")
            end = pb.Finished(id=message_id, outcome=pb.Outcome.Value(f"OUTCOME_{name}"))
            end.result = queue.result_of.get(message_id, b"") if name == "DONE" else b""
            end.cause = "it broke" if name == "DEAD" else ""
            told.finished.CopyFrom(end)
        return told

    async def _stand(self, queue: FakeQueue, asked: pb.Stand, context: Any) -> Any:  # noqa: C901 - one story
        if asked.place and asked.place not in queue.waiters:
            await self.abort(context, Failure(code=grpc.StatusCode.NOT_FOUND, reason="PLACE_LOST"))
        place = asked.place or f"place-{next(self._places)}"
        if not asked.place:
            queue.waiters.append(place)
        queue.present.add(place)
        breaks = self._breaks
        mine: set[str] = set()
        told: pb.Position | None = None

        def is_next() -> bool:
            first = next((each for each in queue.waiters if each in queue.present), "")
            is_free = not queue.policy.limit or len(queue.leased) < queue.policy.limit
            return first == place and bool(queue.line) and is_free and not queue.paused

        def end() -> pb.Outcome.ValueType:
            if self.queues.get(queue.name) is not queue:
                return pb.OUTCOME_DELETED
            is_drained = queue.closed and not (queue.line or queue.leased or queue.delayed)
            return pb.OUTCOME_DRAINED if is_drained else pb.OUTCOME_UNSPECIFIED

        def now() -> pb.Position:
            rank = queue.waiters.index(place) + 1
            return pb.Position(
                place=place, position=rank, length=len(queue.waiters), limit=queue.policy.limit, eta=_eta(queue)
            )

        try:
            while True:
                if self._breaks > breaks:
                    await self.abort(context, CUT)
                if end():
                    yield pb.WatchPositionResponse(finished=pb.Finished(outcome=end()))
                    return
                if is_next():
                    mine = await self._grant(queue, asked, place)
                    deliveries = [queue.delivery(token, asked) for token in sorted(mine)]
                    yield pb.WatchPositionResponse(granted=pb.Granted(deliveries=deliveries))
                    await self.wait_for(lambda: self._breaks > breaks or not mine & set(queue.leased))  # noqa: B023
                    if self._breaks == breaks and not asked.keep_standing:
                        return
                    queue.waiters.insert(0, place)
                    continue
                if told is None or told != now():
                    told = now()
                    yield pb.WatchPositionResponse(position=told)
                await self.wait_for(lambda: self._breaks > breaks or end() or is_next() or told != now())  # noqa: B023
        finally:
            queue.present.discard(place)
            if place in queue.waiters and not queue.policy.place_grace.ToMilliseconds():
                queue.waiters.remove(place)
            for token in sorted(mine & set(queue.leased), reverse=True) if not self.keeps_leases else ():
                queue.ended[token] = Settled.SETTLED_STALE
                queue.line.insert(0, queue.leased.pop(token))
            await self.notify()

    async def _grant(self, queue: FakeQueue, asked: pb.Stand, place: str) -> set[str]:
        mine: set[str] = set()
        queue.waiters.remove(place)
        while queue.line and len(mine) < max(1, asked.max_messages):
            if queue.policy.limit and len(queue.leased) >= queue.policy.limit:
                break
            token = f"lease-{next(self._leases)}"
            queue.leased[token] = queue.line.pop(0)
            queue.leased[token].progress = None
            mine.add(token)
        queue.most_leased = max(queue.most_leased, len(queue.leased))
        await self.notify()
        return mine

    async def WatchQueue(self, request: pb.WatchQueueRequest, context: Any) -> AsyncIterator[pb.WatchQueueResponse]:
        failure = await self.begin("WatchQueue", request, context)
        queue = await self.find(request.queue, context)
        breaks = self._breaks
        self.live_streams += 1
        try:
            while True:
                told = queue.state()
                answer = pb.WatchQueueResponse(queue=told, eta=_eta(queue))
                answer.as_of.FromDatetime(datetime.now(UTC) - self.clock_back)
                yield answer
                await self.end(context, failure)
                await self.wait_for(
                    lambda: self._breaks > breaks or queue.state() != told or queue.name not in self.queues  # noqa: B023
                )
                if self._breaks > breaks:
                    await self.abort(context, CUT)
                if queue.name not in self.queues:
                    await self.abort(context, Failure(code=grpc.StatusCode.NOT_FOUND, reason="QUEUE_DELETED"))
        finally:
            self.live_streams -= 1
            await self.notify()


def _differs(now: pb.WatchPositionResponse, before: pb.WatchPositionResponse) -> bool:
    return _without_mark(now) != _without_mark(before)


def _without_mark(told: pb.WatchPositionResponse) -> pb.WatchPositionResponse:
    plain = pb.WatchPositionResponse.FromString(told.SerializeToString())
    if plain.HasField("position"):
        plain.position.moved_back = False
    return plain


def _eta(queue: FakeQueue) -> Eta:
    eta = Eta(known=queue.eta_seconds is not None)
    if queue.eta_seconds is not None:
        eta.p50.FromMilliseconds(int(queue.eta_seconds * 1000))
        eta.p90.FromMilliseconds(int(queue.eta_seconds * 3000))
    return eta
