"""Where messages stood in line on their way, as far as this process was told: events of their Wait spans."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from headwayd.domain.tracing import thinned


class Places:
    """Of at most `most` messages; those that nothing was told of for the longest time are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._moves: OrderedDict[tuple[str, str], list[tuple[int, int]]] = OrderedDict()

    def note(self, queue: str, message_id: str, at_ms: int, position: int) -> None:
        """It stood there then, by the store's clock."""
        moves = self._moves.setdefault((queue, message_id), [])
        self._moves.move_to_end((queue, message_id))
        if not moves or moves[-1][1] != position:
            moves.append((at_ms, position))
            thinned(moves)
        if len(self._moves) > self._most:
            self._moves.popitem(last=False)

    def take(self, queue: str, message_id: str) -> Sequence[tuple[int, int]]:
        """All that is known of it, which has left the line."""
        return self._moves.pop((queue, message_id), ())
