"""A device: one operation at a time, first in, first out; each has to be dispatched."""

from collections import deque

from sim.machine.shared_memory import Run, Runs, SharedMemory

_END = Run(0.0)


class Device:
    """A device that shares a memory.

    Half of the dispatch lies between the sending of an operation and its start, half between its end and the reply;
    the sender waits for both, and the device is free meanwhile. A second stream of a device is another `Device` of the
    same memory; a group that computes everything together (`costs.group_cost`) is one.
    """

    def __init__(self, memory: SharedMemory, *, half_s: float = 0.0) -> None:
        """`half_s`: half the dispatch time, in whole ticks."""
        self._memory, self._env, self._half_s = memory, memory.env, half_s
        self._computes = False
        self._under_way: Runs | None = None
        self._queue: deque[tuple[float, Runs]] = deque()  # time of arrival, operation
        self._place = memory.join(self.next_run)

    def submit(self, runs: Runs, *, after_s: float = 0.0) -> None:
        """Queue an operation that is sent `after_s` from now: operations are sent in the order of calls."""
        now_s = self._env.now
        arrives_s = now_s + after_s + self._half_s
        self._queue.append((arrives_s, runs))
        if len(self._queue) == 1 and self._under_way is None:
            if arrives_s > now_s:
                self._memory.begin_at(self._place, arrives_s)
            else:
                self._go_on()

    def resume(self) -> None:
        """Go on if idle: an operation under way no longer waits."""
        if self._under_way is not None and not self._computes:
            self._go_on()

    def next_run(self) -> Run | None:
        """Return the next run of the operation under way, or the first one of the next operation that has arrived."""
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
                self._memory.begin_at(self._place, arrives_s)
                return None
            self._under_way = queue.popleft()[1]

    def _go_on(self) -> None:
        run = self.next_run()
        if run is not None:
            self._memory.begin(self._place, run)
