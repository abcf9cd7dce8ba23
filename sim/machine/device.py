"""A device: one operation at a time, first in, first out, each of which has to be dispatched."""

from __future__ import annotations

from collections import deque
from math import inf

from simpy import Event

from costs.ticks import one_in_ticks
from sim.machine.memory_pool import MemoryPool, Run, Runs
from sim.machine.reply import Reply

_END = Run(0.0)


class Device:
    """A device that computes out of a memory pool.

    Half of the dispatch lies between the sending of an operation and its start, half between its end and the reply;
    the device itself is free meanwhile. A stream, a share of a device, is another device of the same pool; a group
    that computes everything together (`costs.group_cost`) is one device.

    Attributes:
        half_s: half a dispatch.
        most_bytes_per_s: its own cap, which it cannot exceed however wide the pool is.
    """

    __slots__ = ("_computes", "_env", "_pool", "_queue", "_under_way", "half_s", "most_bytes_per_s", "place")

    def __init__(self, pool: MemoryPool, *, dispatch_s: float = 0.0, most_bytes_per_s: float = inf) -> None:
        self._pool = pool
        self._env = pool.env
        self._computes = False
        self._under_way: Runs | None = None
        self._queue: deque[tuple[float, Runs]] = deque()  # time of arrival, operation
        self.half_s = one_in_ticks(dispatch_s / 2)
        self.most_bytes_per_s = most_bytes_per_s
        self.place = pool.join(self)

    def execute(self, seconds: float, *, num_bytes: float = 0.0) -> Event:
        """An operation of so much computing and memory traffic, whichever takes longer; the event is its reply."""
        reply = Reply(self._env)
        work_s = max(seconds, num_bytes / min(self.most_bytes_per_s, self._pool.bytes_per_s))
        self.submit(self._single(Run(work_s, bytes_per_s=num_bytes / work_s if num_bytes else 0.0), reply))
        return reply

    def submit(self, runs: Runs, *, after_s: float = 0.0) -> None:
        """Queue an operation that is sent `after_s` from now: operations are sent in the order of calls."""
        now_s = self._env.now
        arrives_s = now_s + after_s + self.half_s
        self._queue.append((arrives_s, runs))
        if len(self._queue) == 1 and self._under_way is None:
            if arrives_s > now_s:
                self._pool.begin_at(self.place, arrives_s)
            else:
                self._go_on()

    def resume(self) -> None:
        """Go on if idle: an operation under way no longer waits."""
        if self._under_way is not None and not self._computes:
            self._go_on()

    def cut(self, run: Run, step_s: float) -> int:
        """See `MemoryPool.cut`."""
        return self._pool.cut(run, step_s)

    def next_run(self) -> Run | None:
        """The next run of the operation under way, or the first one of the next operation that has arrived."""
        queue = self._queue
        while True:
            if self._under_way is not None:
                run = next(self._under_way, _END)
                if run is not _END:
                    self._computes = run is not None
                    return run
                self._under_way = None
            if not queue:
                self._computes = False
                return None
            arrives_s = queue[0][0]
            if arrives_s > self._env.now:
                self._computes = False
                self._pool.begin_at(self.place, arrives_s)
                return None
            self._under_way = queue.popleft()[1]

    def _go_on(self) -> None:
        run = self.next_run()
        if run is not None:
            self._pool.begin(self.place, run)

    def _single(self, run: Run, reply: Reply) -> Runs:
        yield run
        reply.arrive_at(self._env.now + self.half_s)
