"""Measures how long this process was stopped, by Ctrl-Z (which also stops its lanes) or for lack of a core."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

_STOP_S: Final = 1.0
"""A wait that ends this much too late counts as a stop. So does one on a machine with ten busy programs for each core,
whose times hold what the process waited for a core."""


class Stops:
    """Stops of this process of a second or more, found by waits that ended too late.

    `total_s` is the time of all stops so far; `until_s` is the end of the last one, by `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.total_s, self.until_s = 0.0, -math.inf

    def late_s(self, start_s: float, most_s: float) -> float:
        """Return by how much a wait since `start_s` took longer than `most_s`, and record a stop if that is long."""
        now_s = time.perf_counter()
        late_s = now_s - start_s - most_s
        if late_s >= _STOP_S:
            self.total_s += min(late_s, now_s - self.until_s)  # another thread may have recorded the same stop
            self.until_s = now_s
        return late_s


STOPS: Final = Stops()
_PIECE_S: Final = 0.25
"""Length of a wait of `seeing_stops`, by which a recorded stop may be too short."""


@contextmanager
def seeing_stops() -> Iterator[None]:
    """Record stops during the body by a waiting thread, for work in this process that does not wait for lanes."""
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
    """Return `time.monotonic` without the time of stops, for limits on the time of work."""
    return time.monotonic() - STOPS.total_s
