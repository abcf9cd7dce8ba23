"""How long this process stood still: by Ctrl-Z, which stops whoever works for it too, or for want of a core."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

_STOP_S: Final = 1.0
"""A wait that ends so much too late is told as a stop. So is one on a machine with ten programs for each core: the
times hold what such a process waited for a core too."""


class Stops:
    """The time in which this process stood for a second or more, as far as its waits saw it.

    `total_s` is all of it so far; `until_s` is when the process went on last, by `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.total_s, self.until_s = 0.0, -math.inf

    def late_s(self, start_s: float, most_s: float) -> float:
        """Return by how much a wait since `start_s` took longer than `most_s`; it is counted if that is long."""
        now_s = time.perf_counter()
        late_s = now_s - start_s - most_s
        if late_s >= _STOP_S:
            self.total_s += min(late_s, now_s - self.until_s)  # two threads that wait see the same stop
            self.until_s = now_s
        return late_s


STOPS: Final = Stops()
_PIECE_S: Final = 0.25
"""Of the waits that see a stop, and so the most of it that is missed."""


@contextmanager
def seeing_stops() -> Iterator[None]:
    """See the stops of this process in the body, which works itself and waits for no lane: a thread waits instead."""
    is_over = Event()

    def wait() -> None:
        start_s = time.perf_counter()
        while not is_over.wait(_PIECE_S):
            start_s += _PIECE_S + STOPS.late_s(start_s, _PIECE_S)
        STOPS.late_s(start_s, _PIECE_S)

    thread = Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def working_s() -> float:
    """Return `time.monotonic` without the time in which this process stood: whoever limits work goes by it."""
    return time.monotonic() - STOPS.total_s
