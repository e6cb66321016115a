"""Whether what a stream says is news: what a new one says first may be older than what the last one said."""

from google.protobuf.timestamp_pb2 import Timestamp

from headway.core.watching import OVERTAKEN_NS


class Newest:
    """The instant of what was told last, by the store's clock, which may go back."""

    def __init__(self) -> None:
        self._last = 0  # in nanoseconds; 0: nothing was told
        self._before = 0  # the same of the streams before this one

    @property
    def is_known(self) -> bool:
        """Something was told."""
        return self._last != 0

    def begin(self) -> None:
        """Another stream begins."""
        self._before = self._last

    def is_news(self, as_of: Timestamp) -> bool:
        """Whether what was true then is to be told; then it is noted."""
        instant = as_of.ToNanoseconds()
        if 0 < self._before - instant <= OVERTAKEN_NS:
            return False
        self._last = instant
        return True
